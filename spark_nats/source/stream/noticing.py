"""What is noticed while streams are read, changes nothing, and is worth a warning."""

from __future__ import annotations

import logging

from pyspark import TaskContext

from spark_nats.client.memory import once_a_while
from spark_nats.jetstream.delivering import Delivered
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.documents import moment
from spark_nats.protocol.headers import MSG_ID, parse_block
from spark_nats.protocol.own_ids import ids_of_query

logger = logging.getLogger(__name__)

MOST_AHEAD = 86_400.0
"""Seconds by which a stream's last message may be later than its server's clock."""
FEEDS_ITSELF_COUNTS = 3600.0
"""Seconds for which the processes of a machine say no more that a query feeds itself."""
_ahead: set[str] = set()  # streams of which this process has said it


def notice_own_rows(delivered: Delivered, stream: str) -> None:
    """Warn of a streaming query that reads what it has written itself. The first and the last message tell.

    It is said once on a machine, though each of its Python workers notices it. Rows whose message ids the sink has not
    made of the query, such as those of ``foreachBatch``, do not tell.

    Args:
        delivered: messages that a task has read.
        stream: of which stream.
    """
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    messages, _ = delivered
    if not query or not len(messages):
        return
    blocks = (messages.header_at(i) for i in (0, len(messages) - 1))
    ids = [own for block in blocks for own in parse_block(block).get(MSG_ID, ()) if own.startswith(ids_of_query(query))]
    if ids:
        once_a_while(f"{query} feeds itself by {stream}", lambda _: _warn(stream, ids[0]), FEEDS_ITSELF_COUNTS)


def _warn(stream: str, message_id: str) -> None:
    logger.warning(
        "stream %s: the query reads rows that it has written to it itself (message id %s), so it feeds itself and "
        "never has read everything; write to another stream, or read other subjects than those that are written",
        stream,
        message_id,
    )


def ahead(info: StreamInfo) -> float:
    """Return by how many seconds a stream's last message is later than the clock of the server that says so."""
    return max(0.0, (info.last_time - info.time) / 1e9) if info.last_time and info.time else 0.0


def notice_times_ahead(info: StreamInfo) -> None:
    """Warn, once in a process, of a stream whose last message is stamped with a time that has not come yet.

    A stream stamps messages by its leader's clock; a mirror, and a stream that was restored, keep those of another one.
    """
    if ahead(info) > MOST_AHEAD and info.name not in _ahead:
        _ahead.add(info.name)
        logger.warning(
            "stream %s: its last message is stamped %s, and its server's clock says %s: a clock is wrong, or was; "
            "watermarks that follow the column 'timestamp' drop rows with the right time, and times to begin or end "
            "with find other messages than they should",
            info.name,
            f"{moment(info.last_time):%Y-%m-%d %H:%M:%S}Z",
            f"{moment(info.time):%Y-%m-%d %H:%M:%S}Z",
        )
