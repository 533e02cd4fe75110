"""JetStream: streams, reading them by sequence, acknowledged publishing.

=====================  ======================================================================
:mod:`.api`            requests to the JSON API, and its errors
:mod:`.streams`        streams: their state, creating them, finding sequences
:mod:`.reading`        a range of sequences, as columns
:mod:`.publishing`     columns published with acknowledgements
=====================  ======================================================================

Nothing here knows Spark.
"""

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.publishing import Publisher
from spark_nats.jetstream.reading import Delivered, read_range
from spark_nats.jetstream.streams import StreamInfo

__all__ = ["Delivered", "JetStream", "Publisher", "StreamInfo", "read_range"]
