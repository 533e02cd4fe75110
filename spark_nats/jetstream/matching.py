"""Selects streams by a pattern on their names, including streams that are created later.

It also tells whether subject filters can match anything in these streams.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Sequence

from spark_nats import clock
from spark_nats.conditions import Once
from spark_nats.conditions.jetstream import FILTER_MATCHES_NONE, PATTERN_MATCHES_NOTHING, STREAM_NAME_UNSUPPORTED
from spark_nats.errors import JetStreamError, PermissionsError, UnsupportedStreamError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.listing import stream_names
from spark_nats.jetstream.messages import last_sequence
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.keyvalue import RESERVED_STREAMS
from spark_nats.protocol.subjects import covers, name_violation, overlap

logger = logging.getLogger(__name__)

LIST_INTERVAL = 10.0
"""Seconds for which a list of streams is valid: a query notices a new stream at its first look after that."""


def matches(pattern: re.Pattern[str], name: str) -> bool:
    """Tell whether a pattern matches the whole name of a stream.

    A name that begins like the streams of KV buckets, object stores and MQTT matches only if the text of the pattern
    contains that beginning (``KV_``, ``OBJ_``, ``MQTT_``): a pattern for all streams does not mean those.
    """
    reserved = next((each for each in RESERVED_STREAMS if name.startswith(each)), "")
    return reserved.removeprefix("$") in pattern.pattern and pattern.fullmatch(name) is not None


def matching_names(js: JetStream, pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Return the names of all streams that match a pattern, in order.

    A name that servers allow, but that cannot be part of a subject here, raises :class:`UnsupportedStreamError`.
    """
    names = tuple(name for name in stream_names(js) if matches(pattern, name))
    for name in names:
        if violation := name_violation(name):
            raise UnsupportedStreamError(STREAM_NAME_UNSUPPORTED(stream=name, violation=violation))
    return names


_OTHER_SUBJECTS = ("mirror", "sources", "subject_transform")
_SUBJECTS_SHOWN = 10


def unmatched_filters(filters: Sequence[str], streams: Iterable[StreamInfo]) -> tuple[str, ...]:
    """Return the filters that match no subject on which one of these streams listens.

    Messages that were stored before a stream got its present subjects may match all the same. Nothing is returned if a
    stream mirrors or sources others or transforms subjects, because it may then hold any subject.
    """
    found = tuple(filters)
    for info in streams:
        if not info.subjects or any(info.config.get(field) for field in _OTHER_SUBJECTS):
            return ()
        found = tuple(each for each in found if not any(overlap(each, subject) for subject in info.subjects))
    return found


def subjects_read(info: StreamInfo, filters: Sequence[str]) -> tuple[str, ...]:
    """Return which subjects of a stream a reader with some filters reads, of all if there are none.

    They are no wider than those on which the stream listens, unless it may hold any subject.
    """
    wanted = tuple(filters) or (">",)
    if not info.subjects or any(info.config.get(field) for field in _OTHER_SUBJECTS):
        return wanted
    found = list[str]()
    for each in wanted:
        narrower = [subject for subject in info.subjects if covers(each, subject)]
        rest = any(overlap(each, subject) for subject in info.subjects if subject not in narrower)
        found += narrower if narrower and not rest else [each]
    return tuple(dict.fromkeys(found))


class Selection:
    """The streams that a query reads: the named ones, or those whose names match a pattern if there is one."""

    def __init__(self, named: Sequence[str], pattern: re.Pattern[str] | None = None) -> None:
        self.names = tuple(named)
        self.pattern = pattern
        self._listed = -math.inf
        self._said = Once()
        self._seen: dict[str, StreamInfo] | None = {}  # None once it is known whether filters match

    def __str__(self) -> str:
        return f"the streams that match {self.pattern.pattern!r}" if self.pattern else ", ".join(self.names)

    @property
    def is_due(self) -> bool:
        """Whether the matching names have to be listed, because there is no list yet or the last one is too old."""
        return self.pattern is not None and clock.monotonic() - self._listed >= LIST_INTERVAL

    def look(self, js: JetStream) -> None:
        """List the matching names, if that is due; warn once when there are none."""
        if self.pattern is None or not self.is_due:
            return
        self.names = matching_names(js, self.pattern)
        self._listed = clock.monotonic()
        if not self.names and self._said.first():
            logger.warning(PATTERN_MATCHES_NOTHING(pattern=self.pattern.pattern).with_code)

    def see(self, js: JetStream, info: StreamInfo, filters: Sequence[str]) -> None:
        """Note a stream's state; when all were seen, warn once of filters that match no subject and no message."""
        if self._seen is None or not filters:
            return
        self._seen[info.name] = info
        streams = [self._seen[name] for name in self.names if name in self._seen]
        if len(streams) < len(self.names):
            return
        filters = [each for each in unmatched_filters(filters, streams) if not _is_held(js, streams, each)]
        self._seen = None
        if filters:
            subjects = sorted({subject for stream in streams for subject in stream.subjects})
            more = f" and {len(subjects) - _SUBJECTS_SHOWN} more" if len(subjects) > _SUBJECTS_SHOWN else ""
            logger.warning(
                FILTER_MATCHES_NONE(
                    filters=", ".join(filters),
                    streams=", ".join(stream.name for stream in streams[:_SUBJECTS_SHOWN]),
                    subjects=", ".join(subjects[:_SUBJECTS_SHOWN]) + more,
                ).with_code
            )

    def leave_out(self, name: str) -> None:
        """Leave out a stream until the names are listed again."""
        self.names = tuple(each for each in self.names if each != name)


def _is_held(js: JetStream, streams: Sequence[StreamInfo], subject: str) -> bool:
    """Tell whether one of some streams holds a message that matches a filter; True also when that is not reported."""
    try:
        return any(info.messages and last_sequence(js, info.name, (subject,)) for info in streams)
    except (JetStreamError, PermissionsError):
        return True
