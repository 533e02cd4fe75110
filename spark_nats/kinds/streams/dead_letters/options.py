"""The options ``badRows`` and ``badRowsStream``."""

from collections.abc import Collection

from spark_nats.errors import OptionError
from spark_nats.kinds.streams.dead_letters import conditions
from spark_nats.options import values
from spark_nats.options.option import option
from spark_nats.options.query import Query, RowQuery
from spark_nats.options.values import FAIL

DROP, TO_STREAM = "drop", "stream"
"""What happens to rows that cannot be sent, unless they fail the task."""


def read_bad_rows(text: str) -> str:
    """Read ``fail``, ``drop`` or ``stream``."""
    return values.read_word(text, FAIL, DROP, TO_STREAM)


class BadRows(RowQuery, section="Writing"):
    """The options for rows that cannot be sent."""

    bad_rows: str = option(
        read_bad_rows,
        "what to do with a row that cannot be sent, or that the server refuses because of the row itself: `fail` the "
        "task, `drop` the row, or store it in a `stream`, which `badRowsStream` names, with the reason in headers",
        default=FAIL,
    )
    bad_rows_stream: str | None = option(values.read_name, "with `badRows` = `stream`: the stream that gets such rows")

    @property
    def dead_letter_stream(self) -> str | None:
        """The stream that gets the rows that cannot be sent; None where no stream does."""
        return self.bad_rows_stream

    def check_and_make_query(self, given: Collection[str]) -> Query:
        """Check that the options determine where bad rows go, and that they can go there."""
        what, other = self.bad_rows, self.bad_rows_stream
        if what == TO_STREAM and other is None:
            raise OptionError(conditions.BAD_ROWS_NEED_STREAM())
        if what != TO_STREAM and other is not None:
            raise OptionError(conditions.BAD_ROWS_GO_NOWHERE(stream=other, what=what))
        if other is not None and self.is_target(other):
            raise OptionError(conditions.BAD_ROWS_STREAM_IS_TARGET(stream=other))
        if what != FAIL and len(self.chosen_row_writers) > 1:
            raise OptionError(conditions.BAD_ROWS_WITH_ATOMIC(what=what))
        return super().check_and_make_query(given)
