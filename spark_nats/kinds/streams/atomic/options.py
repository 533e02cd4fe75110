"""The option ``atomic``."""

from collections.abc import Collection

from spark_nats.errors import OptionError
from spark_nats.kinds.streams.atomic.conditions import ONE_STREAM_TOGETHER
from spark_nats.options import values
from spark_nats.options.option import option
from spark_nats.options.query import Query, RowQuery


class Atomic(RowQuery, section="Writing"):
    """The option for rows that are stored together."""

    atomic: bool = option(
        values.read_boolean,
        "store the rows of each partition, 1,000 at most, together or not at all; needs a stream with `allow_atomic`",
        default="false",
    )

    def check_and_make_query(self, given: Collection[str]) -> Query:
        """Check that all rows go to one stream."""
        if self.atomic and self.may_have_several_targets:
            raise OptionError(ONE_STREAM_TOGETHER())
        return super().check_and_make_query(given)
