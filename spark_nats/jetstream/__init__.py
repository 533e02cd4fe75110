"""JetStream: streams, reading them by sequence, acknowledged publishing, KV buckets. Nothing here knows Spark.

A function with a :class:`JetStream` parameter may send requests, and raises :class:`~spark_nats.errors.NatsError` when
one fails. Not every docstring repeats that.
"""

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.publishing.publisher import Publisher
from spark_nats.jetstream.reading.delivering import Delivered
from spark_nats.jetstream.reading.ranges import Range, RangeReader, ReadMethod, read_range
from spark_nats.jetstream.streams import StreamInfo

__all__ = ["Delivered", "JetStream", "Publisher", "Range", "RangeReader", "ReadMethod", "StreamInfo", "read_range"]
