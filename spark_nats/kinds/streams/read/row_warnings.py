"""Warnings about what readers notice in streams and do not act on."""

from __future__ import annotations

import logging

from pyspark import TaskContext

from spark_nats.client.host_cache import feeds_itself_fact, run_unless_succeeded_lately
from spark_nats.conditions import Once
from spark_nats.jetstream.reading.delivering import Delivered
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.kinds.streams.read.conditions import CLOCK_WRONG, FEEDS_ITSELF
from spark_nats.options.short_forms import id_prefix_of
from spark_nats.protocol.documents import to_datetime
from spark_nats.protocol.headers import MSG_ID, parse_block

logger = logging.getLogger(__name__)

MAX_AHEAD = 86_400.0
"""Seconds by which a stream's last message may be later than the clock of the server that reports it."""
_ahead = Once()  # streams that this process has warned about


def warn_of_own_rows(delivered: Delivered, stream: str) -> None:
    """Warn of a streaming query that reads its own rows; only the first and the last of the messages are checked.

    A machine logs the warning at most once an hour, though each of its Python workers notices. Rows whose message ids
    the sink has not made from the query's id, such as those of ``foreachBatch``, go unnoticed.
    """
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    messages, _ = delivered
    if not query or not len(messages):
        return
    blocks = (messages.header_at(i) for i in (0, len(messages) - 1))
    ids = [own for block in blocks for own in parse_block(block).get(MSG_ID, ()) if own.startswith(id_prefix_of(query))]
    if ids:
        said = FEEDS_ITSELF(stream=stream, message_id=ids[0]).with_code
        run_unless_succeeded_lately(feeds_itself_fact(query, stream), lambda _: logger.warning(said))


def warn_of_times_ahead(info: StreamInfo) -> None:
    """Warn, once in a process, of a stream whose last message is more than :data:`MAX_AHEAD` in the future.

    The leader of a stream stamps messages by its clock. A mirror and a restored stream keep the times of another clock.
    """
    is_ahead = info.time and (info.last_time - info.time) / 1e9 > MAX_AHEAD
    if is_ahead and _ahead.add_if_new(info.name):
        last, now = (f"{to_datetime(time):%Y-%m-%d %H:%M:%S}Z" for time in (info.last_time, info.time))
        logger.warning(CLOCK_WRONG(stream=info.name, last=last, now=now).with_code)
