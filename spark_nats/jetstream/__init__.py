"""JetStream: streams, reading them by sequence, acknowledged publishing, KV buckets. Nothing here knows Spark.

Every function with a :class:`JetStream` parameter sends requests, and raises :class:`~spark_nats.errors.NatsError` when
one fails. Where it raises nothing else, its docstring does not repeat that.
"""

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.publishing.publisher import Publisher
from spark_nats.jetstream.reading.delivering import Delivered
from spark_nats.jetstream.reading.ranges import Range, RangeReader, ReadMethod, read_range
from spark_nats.jetstream.streams import StreamInfo

__all__ = ["Delivered", "JetStream", "Publisher", "Range", "RangeReader", "ReadMethod", "StreamInfo", "read_range"]
