"""JetStream: streams, reading them by sequence, acknowledged publishing.

=====================  ======================================================================
:mod:`.api`            requests to the JSON API, and its errors
:mod:`.account`        what an account uses of JetStream, and may
:mod:`.streams`        streams: their state, creating them, finding sequences
:mod:`.matching`       streams whose names match a pattern
:mod:`.consumers`      ephemeral consumers within the limits of streams and accounts
:mod:`.delivering`     what consumers deliver, one consumer after another
:mod:`.reading`        a range of sequences, as columns
:mod:`.direct`         the same without a consumer, by direct gets
:mod:`.measuring`      how many bytes messages have
:mod:`.holding`        a durable consumer that holds messages until they are processed
:mod:`.pulling`        pull requests as the server counts them: arithmetic only
:mod:`.doubts`         losses that may be none
:mod:`.searching`      whether the server or this side looks for what matches a filter
:mod:`.publishing`     columns published with acknowledgements
:mod:`.batches`        rows that are stored together or not at all
:mod:`.stored`         which message ids a stream holds
:mod:`.keyvalue`       KV buckets, as far as a small state needs them
:mod:`.entries`        what a KV bucket holds, as columns
:mod:`.refusals`       telling refused rows from stored ones: arithmetic only
=====================  ======================================================================

Nothing here knows Spark.
"""

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.delivering import Delivered
from spark_nats.jetstream.publishing import Publisher
from spark_nats.jetstream.reading import RangeReader, read_range
from spark_nats.jetstream.streams import StreamInfo

__all__ = ["Delivered", "JetStream", "Publisher", "RangeReader", "StreamInfo", "read_range"]
