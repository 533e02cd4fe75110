"""The option ``atomic``."""

from spark_nats.options import values
from spark_nats.options.option import option
from spark_nats.options.query import RowQuery


class Atomic(RowQuery, section="Writing"):
    """The option for rows that are stored together."""

    atomic: bool = option(
        values.read_boolean,
        "store the rows of each partition, 1,000 at most, together or not at all; needs a stream with `allow_atomic`",
        default="false",
    )
