"""Shows how far a reader has come, by moving the floor of a durable consumer that nobody pulls from.

The consumer holds no message: that needs limits retention, where acknowledging deletes nothing. Its floor follows
the reader, forwards or backwards (ADR-60 and the server's CONSUMER.RESET, 2.14), so the messages that the server counts
as pending are those still ahead of the reader. The consumer is for display only: the reader keeps its position
elsewhere, and continues when the consumer cannot be moved.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from spark_nats import clock
from spark_nats.conditions import Once, Topic
from spark_nats.conditions import jetstream as conditions
from spark_nats.errors import ConsumerConflictError, JetStreamError, NatsError, NatsTimeoutError, UnsupportedStreamError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.consumers import (
    ask_consumer,
    check_servers_move_consumers,
    create_or_update_durable,
    move_consumer,
)
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.protocol.consumers import durable_config, max_inactive_threshold, reason_not_ours

logger = logging.getLogger(__name__)

READER = "spark-nats-progress"  # key in the metadata for the run whose progress the consumer shows
RETRY = 60.0
"""Seconds before the next attempt to move a consumer that could not be moved."""
_PATIENCE = 1.0  # seconds for the answer: the next micro-batch waits for it


class ProgressConsumers:
    """The consumers of one name, one per stream, for one run of a reader of ``filters``, of all subjects if empty."""

    def __init__(self, name: str, filters: Sequence[str]) -> None:
        self._name = name
        self._filters = tuple(filters)
        self._run = clock.token(8)
        # By stream:
        self._stands: dict[str, tuple[str, int]] = {}  # when the stream was created, and where the consumer is
        self._rests_until: dict[str, float] = {}  # when the next attempt to move it is due; inf when another has it
        self._said = Once()

    def create_or_take_over(self, js: JetStream, info: StreamInfo) -> None:
        """Create a stream's consumer, or take over an earlier run's, unless this run has done so or waits to try again.

        If the server refuses or does not answer, that is logged once, and the call returns.

        Raises:
            UnsupportedStreamError: the stream cannot have such a consumer, or its server is too old.
            ConsumerConflictError: the consumer exists, and another program has created it or it has other filters.
            PermissionsError: the user may not look for the consumer or create it.
            NatsError: the connection failed.
        """
        if info.name in self._stands or self._is_too_early(info.name):
            return
        if info.retention != LIMITS:
            raise UnsupportedStreamError(conditions.PROGRESS_NEEDS_LIMITS(stream=info.name, retention=info.retention))
        if max_inactive_threshold(info.config):
            raise UnsupportedStreamError(conditions.PROGRESS_WOULD_EXPIRE(stream=info.name))
        try:
            check_servers_move_consumers(js, info, "showing progress by a consumer")
            self._create_or_take_over(js, info)
        except UnsupportedStreamError as error:
            raise error.with_topics(Topic.PROGRESS) from None
        except (JetStreamError, NatsTimeoutError) as error:  # such as no place for one more consumer
            self._log_and_postpone(info.name, error)

    def move_consumer_or_log(self, js: JetStream, info: StreamInfo, position: int) -> None:
        """Show that everything before a sequence is processed; log a failure once, and continue."""
        stream, (created, shown) = info.name, self._stands.get(info.name, ("", 0))
        if (created, shown) == (info.created, position) or self._is_too_early(stream):
            return
        try:
            # A consumer that another run or program owns by now must not be moved.
            found = ask_consumer(js, stream, self._name) if created == info.created else None
            if found is None:
                self._create_or_take_over(js, info)
            elif found.metadata.get(READER) != self._run:
                self._rests_until[stream] = math.inf
                logger.warning(conditions.PROGRESS_TAKEN(stream=stream, consumer=self._name).with_code)
                return
            move_consumer(js, stream, self._name, position, timeout=_PATIENCE)
        except NatsError as error:
            self._log_and_postpone(stream, error)
        else:
            self._stands[stream] = info.created, position
            self._said.discard(stream)

    def _is_too_early(self, stream: str) -> bool:
        return clock.monotonic() < self._rests_until.get(stream, 0.0)

    def _log_and_postpone(self, stream: str, error: NatsError) -> None:
        """Log the failure once, and have the next attempt wait for :data:`RETRY` seconds."""
        self._rests_until[stream] = clock.monotonic() + RETRY
        if self._said.add_if_new(stream):
            logger.warning(conditions.PROGRESS_NOT_SHOWN(stream=stream, consumer=self._name, reason=error).with_code)

    def _create_or_take_over(self, js: JetStream, info: StreamInfo) -> None:
        found = ask_consumer(js, info.name, self._name)
        if found is None:
            about = "shows how far a query of Spark has come; nobody pulls from it"
            config = durable_config(self._name, self._filters, {READER: self._run}, description=about)
            create_or_update_durable(js, info.name, config, "create")
            logger.info(conditions.DURABLE_MADE(stream=info.name, consumer=self._name).with_code)
        else:
            if problem := reason_not_ours(found, READER, self._filters, " to show progress"):
                what = f"the consumer {self._name!r} of stream {info.name!r}"
                why = conditions.DURABLE_NOT_OURS(what=what, problem=problem)
                raise ConsumerConflictError(why).with_topics(Topic.PROGRESS)
            config = {**found.config, "metadata": {**found.metadata, READER: self._run}}
            create_or_update_durable(js, info.name, config, "update")
        self._stands[info.name] = info.created, 0
