"""Errors and warnings about rows that cannot be sent, where these do not fail their task."""

from spark_nats.conditions import Condition, set_codes

BAD_ROWS_NEED_STREAM = Condition(
    "option 'badRows' is stream, but 'badRowsStream' is not set: name the stream that gets rows that cannot be sent"
)
BAD_ROWS_GO_NOWHERE = Condition(
    "option 'badRowsStream' is {stream!r}, but 'badRows' is {what}; set 'badRows' to stream, or leave 'badRowsStream' "
    "out"
)
BAD_ROWS_STREAM_IS_TARGET = Condition(
    "option 'badRowsStream' is {stream!r}, which the other rows are written to; name another stream"
)
BAD_ROWS_WITH_ATOMIC = Condition(
    "option 'badRows' is {what}, but with 'atomic' all rows of a partition are stored or none; leave one of them out"
)
BAD_ROWS_NOT_STORED = Condition(
    "rows that cannot be sent could not be stored in stream {stream!r}, the option 'badRowsStream', either: {reason}"
)
BAD_ROWS_STREAM_MISSING = Condition(
    "there is no stream for rows that cannot be sent: {reason}; create it, or name another one with the option "
    "'badRowsStream'"
)
BAD_ROWS_NEED_SUBJECT = Condition(
    "stream {stream!r} listens on no subject of its own, so it cannot take rows that cannot be sent; name another "
    "stream with the option 'badRowsStream'"
)
BAD_ROWS_NEED_ROOM = Condition(
    "stream {stream!r} takes messages of {size} bytes at most (max_msg_size), and rows that cannot be sent need "
    "{least}, for the headers that say why; raise it, or name another stream with the option 'badRowsStream'"
)
BAD_ROWS_ARE_NO_INCREMENTS = Condition(
    "stream {stream!r} takes only increments of counters, so it cannot take rows that cannot be sent; name another "
    "stream with the option 'badRowsStream'"
)
NO_ROOM_FOR_HEADERS = Condition(
    "a row on {subject} has {size} bytes of its own, and {added} bytes of headers are added to it, which is more than "
    "{whose} of {most} bytes; nothing is wrong with the row, so it is not dropped; raise the limit, or set the option "
    "'badRows' to stream"
)
BAD_ROWS_SET_ASIDE = Condition(
    "{bad} of the {rows} rows of {task} could not be sent and are in stream {stream}; the first: {reason}"
)
BAD_ROWS_DROPPED = Condition(
    "{bad} of the {rows} rows of {task} could not be sent and were left out; the first: {reason}"
)

set_codes(globals())
