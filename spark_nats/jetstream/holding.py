"""A durable consumer that holds messages for whoever reads them by sequence, and lets them go when they are processed.

Nobody pulls from it. On an interest stream it keeps the messages that others have acknowledged; on a work queue it
claims its subjects, so that nobody else can take from them; on a stream with limits it shows how far a reader is.
What is processed is released: on a work queue by a purge of what lies before, since moving the consumer there would
strand messages; elsewhere by moving the consumer's floor (ADR-60 and the server's CONSUMER.RESET, 2.14).

One run of a reader owns the durable at a time: the one whose mark stands in its metadata, which is the last that has
taken it. Nothing is released without looking at the mark, so two readers on one durable never lose each other's
messages silently.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from spark_nats.errors import (
    ConsumerConflictError,
    JetStreamError,
    NatsError,
    PermissionsError,
    Remedy,
    UnsupportedStreamError,
)
from spark_nats.jetstream.api import JetStream, interpreting
from spark_nats.jetstream.consumers import PLACE_LIMIT
from spark_nats.jetstream.direct import allows_direct_gets
from spark_nats.jetstream.doubts import Doubts
from spark_nats.jetstream.streams import INTEREST, WORK_QUEUE, StreamInfo, next_sequence
from spark_nats.protocol.api import Api, ErrCode
from spark_nats.protocol.documents import integer_at, string_at
from spark_nats.protocol.statuses import NO_RESPONDERS
from spark_nats.protocol.subjects import overlap

logger = logging.getLogger(__name__)

OWNER = "spark-nats-owner"
"""Name in the metadata of a durable under which the run is noted that owns it."""
NEW = "spark-nats-new"
"""Name in the metadata of a durable that was made and of which it was not yet said what its absence means: a run that
ends with that, or before, leaves it to the next one."""
LOOK_INTERVAL = 5.0
"""Seconds between two looks at a durable from which nothing is released."""
STEP = 100_000
"""Sequences that are released by one request: a server takes about 5 µs to remove each message."""
_RESET_LEVEL = 4  # of the API: nats-server 2.14
_MOST_SHOWN = 3
_NEVER_PULLED = {"ack_policy": "explicit", "deliver_policy": "all", "deliver_subject": None, "inactive_threshold": None}


def default_name(stream: str, filters: Sequence[str]) -> str:
    """Return a name for the durable of a reader of these subjects; it is the same each time."""
    text = "\n".join([stream, *sorted(filters)])
    return f"spark-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Hold:
    """The durable of one stream, for one run of a reader. It can be pickled; each call is given a connection.

    Args:
        stream: which stream.
        name: of the durable.
        filters: subjects that are read, which do not overlap; all when empty.
        patience: most seconds to doubt that the durable is gone, see :class:`~.doubts.Doubts`.

    Attributes:
        name: as given.
        retention: of the stream, once it was seen; else None.
    """

    def __init__(self, stream: str, name: str, filters: Sequence[str], patience: float) -> None:
        self.name = name
        self.retention: str | None = None
        self._stream = stream
        self._filters = tuple(filters)
        self._owner = secrets.token_hex(8)
        self._created: str | None = None  # when the stream was made in which it is held
        self._config: dict[str, Any] = {}  # of the durable, as the server has it
        self._known = False  # this run has held it before
        self._missing = False  # it had to be made, and what that means was not yet said
        self._released = 0  # all before this sequence is known to be released
        self._looked = 0.0
        self._doubts = Doubts(patience)

    @property
    def begun(self) -> bool:
        """Whether the reader has begun or gone on: what may be lost because the durable was not there is said."""
        return self._known and not self._missing

    @property
    def _what(self) -> str:
        return f"the durable consumer {self.name!r} of stream {self._stream!r}"

    # Taking

    def take(self, js: JetStream, info: StreamInfo) -> None:
        """Make the durable, or take over the one that is there, unless this run has it already.

        Args:
            js: where.
            info: state of the stream.

        Raises:
            UnsupportedStreamError: nothing can be released from such a stream, or the server is too old.
            ConsumerConflictError: the durable is not one of ours, or another consumer stands in the way.
            NatsError: a request failed.
        """
        if self._created == info.created:
            return
        self.retention = info.retention
        check_releasable(js, info)
        found = self._find(js)
        if found is None:
            found = self._make(js, info)
        else:
            self._check_ours(found)
            found = self._mark(js, found["config"], {**found["config"]["metadata"], OWNER: self._owner})
        self._config = found["config"]
        self._missing = NEW in (self._config.get("metadata") or {})
        self._created = info.created
        self._released = 0 if self.retention == WORK_QUEUE else _floor(found)
        self._looked = time.monotonic()

    def begins(self, js: JetStream) -> None:
        """Note that the reader begins, or goes on although there was no durable: that is no matter any more.

        Raises:
            NatsError: a request failed.
        """
        if self._missing:
            metadata = {name: value for name, value in self._config["metadata"].items() if name != NEW}
            self._mark(js, self._config, metadata)
        self._missing = False
        self._known = True

    def resumes(self, js: JetStream, start: int) -> str | None:
        """Say what may be lost, because the durable of a reader that goes on at ``start`` was not there.

        If something may be, the reader has not begun: :meth:`begins` says that it goes on all the same.

        Raises:
            ConsumerConflictError: what a work queue has before ``start`` was perhaps never read, and would go.
            NatsError: a request failed.
        """
        missing, known = self._missing, self._known
        if missing and self.retention == WORK_QUEUE and not known:
            left = next_sequence(js, self._stream, 1, self._filters or (">",))
            if left is not None and left < start:
                raise ConsumerConflictError(
                    f"stream {self._stream!r} has messages before sequence {start}, where the checkpoint goes on, such "
                    f"as {left}, and {self._what}, which would tell that they are processed, does not exist: was it "
                    "deleted, or are the subjects other ones now? Begin with a new checkpoint to read them, or purge "
                    "them if they are processed"
                )
        if not missing or self.retention != INTEREST:
            self.begins(js)
            return None
        return (
            f"{self._what}, which keeps messages until they are read, was deleted; those that were published meanwhile "
            "may be gone"
        )

    def _find(self, js: JetStream) -> dict[str, Any] | None:
        """Return what the server says of the durable; None when there is none, and that is certain."""
        try:
            found = js.request(Api.CONSUMER_INFO, self._stream, self.name)
        except JetStreamError as error:
            if error.err_code != ErrCode.CONSUMER_NOT_FOUND:
                raise
            if self._known:
                self._doubts.confirm(js, self.name, f"{self._what} does not exist any more")
            return None
        self._doubts.settle(self.name)
        with interpreting(Api.CONSUMER_INFO, self._stream, self.name):
            string_at(found, "config", "ack_policy")
            integer_at(found, "ack_floor", "stream_seq")
            integer_at(found, "delivered", "consumer_seq")
        return found

    def _make(self, js: JetStream, info: StreamInfo) -> dict[str, Any]:
        config: dict[str, Any] = {
            "name": self.name,
            "durable_name": self.name,
            **{name: value for name, value in _NEVER_PULLED.items() if value is not None},
            "metadata": {OWNER: self._owner, NEW: "true"},
        }
        if self._filters:
            config["filter_subjects"] = list(self._filters)
        try:
            made = self._configure(js, config, "create")
        except JetStreamError as error:
            raise self._refused(js, error) from None
        logger.info("stream %s: made the durable consumer %s", self._stream, self.name)
        return made

    def _mark(self, js: JetStream, config: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
        """Give a durable that is there other metadata."""
        try:
            return self._configure(js, {**config, "metadata": metadata}, "update")
        except JetStreamError as error:
            if error.err_code == ErrCode.CONSUMER_DOES_NOT_EXIST:  # somebody has deleted it this moment
                raise JetStreamError(f"{self._what} has just been deleted", NO_RESPONDERS) from None
            raise

    def _configure(self, js: JetStream, config: dict[str, Any], action: str) -> dict[str, Any]:
        body = {"stream_name": self._stream, "config": config, "action": action}
        answer = js.request(Api.CONSUMER_CREATE, self._stream, self.name, body=body)
        with interpreting(Api.CONSUMER_CREATE, self._stream, self.name):
            string_at(answer, "config", "ack_policy")
            integer_at(answer, "ack_floor", "stream_seq")
        return answer

    def _refused(self, js: JetStream, error: JetStreamError) -> NatsError:
        """Return the error of a durable that could not be made."""
        said = f"({error.description}, {error.err_code})"
        match error.err_code:
            case ErrCode.MULTIPLE_UNFILTERED | ErrCode.CONSUMER_NOT_UNIQUE:
                subjects = ", ".join(self._filters) or "all subjects"
                return ConsumerConflictError(
                    f"{self._what} cannot be made: a work queue has one consumer for each subject, and {subjects} "
                    f"belong to {self._rivals(js)} {said}; read other subjects, or delete the other consumer"
                )
            case ErrCode.MAXIMUM_CONSUMERS:
                return ConsumerConflictError(
                    f"{self._what} cannot be made: the stream has as many consumers as it may have ({PLACE_LIMIT}) "
                    f"{said}; raise the limit, or delete one"
                )
            case ErrCode.CONSUMER_EXISTS:  # somebody has made it this moment
                return JetStreamError(f"{self._what} has just been made by somebody else", NO_RESPONDERS)
        return error

    def _rivals(self, js: JetStream) -> str:
        """Name the consumers that have our subjects, as far as we may know."""
        try:
            answer = js.request(Api.CONSUMER_LIST, self._stream)
            names = [each["name"] for each in answer["consumers"] if self._overlaps(_filters_of(each["config"]))]
        except (PermissionsError, JetStreamError, AttributeError, KeyError, TypeError):
            return "another one"
        shown = ", ".join(repr(str(name)) for name in names[:_MOST_SHOWN])
        return (shown + " and others" if len(names) > _MOST_SHOWN else shown) or "another one"

    def _overlaps(self, filters: tuple[str, ...]) -> bool:
        return any(overlap(one, other) for one in self._filters or (">",) for other in filters or (">",))

    def _check_ours(self, found: dict[str, Any]) -> None:
        """Check that a durable of our name is one that we, or an earlier run, have made.

        Raises:
            ConsumerConflictError: it is not.
        """
        config = found["config"]
        problem = None
        if _owner_of(found) is None:
            problem = "was not made by spark-nats"
        elif sorted(_filters_of(config)) != sorted(self._filters):
            problem = f"is for {', '.join(_filters_of(config)) or 'all subjects'}"
        elif {name: config.get(name) for name in _NEVER_PULLED} != _NEVER_PULLED:
            problem = "has another configuration than spark-nats gives it"
        if problem:
            raise ConsumerConflictError(
                f"{self._what} exists and {problem}; delete it if nobody needs it", remedies=[Remedy.CONSUMER]
            )
        self._check_unused(found)

    def _check_unused(self, found: dict[str, Any]) -> None:
        if integer_at(found, "delivered", "consumer_seq"):
            raise ConsumerConflictError(
                f"somebody else pulls from {self._what}, which only holds messages for Spark, and takes them away; "
                "delete it and see to it that only Spark uses it",
                remedies=[Remedy.CONSUMER],
            )

    # Releasing

    def look(self, js: JetStream) -> None:
        """Look now and then whether the durable is still there and ours."""
        if time.monotonic() - self._looked > LOOK_INTERVAL:
            self._look(js)

    def _look(self, js: JetStream) -> dict[str, Any] | None:
        """Return what the server says of our durable; None when somebody has deleted it.

        Raises:
            ConsumerConflictError: another run has taken it, or somebody pulls from it.
        """
        self._looked = time.monotonic()
        found = self._find(js)
        if found is None:
            self._created = None  # it has to be made anew
            return None
        if _owner_of(found) != self._owner:
            raise ConsumerConflictError(
                f"another query, or another run of this one, has taken over {self._what}; this one ends, so that "
                "nothing is lost",
                remedies=[Remedy.CONSUMER],
            )
        self._check_unused(found)
        return found

    def released(self, created: str, end: int) -> bool:
        """Tell whether all before a sequence is known to be released, or cannot be: it is of another stream."""
        return end <= max(self._released, 1) or self._created != created

    def release(self, js: JetStream, info: StreamInfo, end: int) -> None:
        """Let go of all messages before a sequence. If that is beyond the stream's end, nothing is let go.

        Args:
            js: where.
            info: the stream's state.
            end: all before it is processed.

        Raises:
            ConsumerConflictError: another run has taken the durable.
            NatsError: a request failed.
        """
        if self.released(info.created, end) or end > info.last_sequence + 1:
            return
        found = self._look(js)
        if found is None:
            return
        if self.retention == WORK_QUEUE:
            self._purge(js, max(info.first_sequence, self._released), end)
        else:
            self._move_floor(js, max(info.first_sequence, _floor(found)), _floor(found), end)
        self._released = max(self._released, end)

    def rewind(self) -> None:
        """Note that the stream has come back older, and with it perhaps the durable: it is taken again."""
        self._created = None

    def _purge(self, js: JetStream, first: int, target: int) -> None:
        """Remove what a work queue has before ``target``, of which nothing lies before ``first``."""
        if target <= max(first, 1):  # a purge up to sequence 1 is one of everything for some servers
            return
        if not self._filters:
            js.request(Api.STREAM_PURGE, self._stream, body={"seq": target})
        for subject in self._filters:
            start: int | None = first
            if target - first > STEP:  # those of other subjects may lie in between
                start = next_sequence(js, self._stream, first, (subject,))
            for end in self._steps(js, start or target, target):
                js.request(Api.STREAM_PURGE, self._stream, body={"seq": end, "filter": subject})

    def _move_floor(self, js: JetStream, first: int, floor: int, target: int) -> None:
        """Have the durable hold nothing before ``target``; never back, and nothing lies before ``first``."""
        if target <= floor:
            return
        try:
            for end in self._steps(js, first, target) if self.retention == INTEREST else (target,):
                js.request(Api.CONSUMER_RESET, self._stream, self.name, body={"seq": end}, level=_RESET_LEVEL)
        except JetStreamError as error:
            if error.err_code == ErrCode.REQUIRED_API_LEVEL:
                raise _too_old(js, "2.14", f"releasing from a stream with {self.retention} retention") from None
            raise

    def _steps(self, js: JetStream, start: int, target: int) -> Iterator[int]:
        """Return ends up to which to remove one after the other, so that each request is answered in time.

        Before each but the first it is looked whether the durable is still there and ours.
        """
        for end in range(start + STEP, target, STEP):
            yield end
            if self._look(js) is None:
                return
        yield target


def _floor(found: dict[str, Any]) -> int:
    """Return the sequence before which a consumer holds nothing."""
    return integer_at(found, "ack_floor", "stream_seq") + 1


def _owner_of(found: dict[str, Any]) -> object:
    """Return the mark of the run that owns a consumer; None when it has none."""
    metadata = found["config"].get("metadata")
    return metadata.get(OWNER) if isinstance(metadata, dict) else None


def _filters_of(config: dict[str, Any]) -> tuple[str, ...]:
    """Return the subjects of a consumer; none when it has all."""
    several = config.get("filter_subjects")
    if isinstance(several, list) and several:
        return tuple(map(str, several))
    return (str(config["filter_subject"]),) if config.get("filter_subject") else ()


def check_releasable(js: JetStream, info: StreamInfo) -> None:
    """Check that messages of a stream can be read by sequence and then be released.

    Raises:
        UnsupportedStreamError: they cannot, as it is configured, or by such an old server.
    """
    limits = info.config.get("consumer_limits")
    if isinstance(limits, dict) and limits.get("inactive_threshold"):
        raise UnsupportedStreamError(
            f"stream {info.name!r} deletes consumers from which nobody pulls (consumer_limits, inactive_threshold); "
            "so would be the durable one that holds messages for a query: take that out of the stream's configuration"
        )
    if info.retention != WORK_QUEUE:
        if js.connection.info.is_older_than(2, 14):
            raise _too_old(js, "2.14", f"releasing from a stream with {info.retention} retention")
        return
    check_direct(js, info)
    for name in ("deny_purge", "sealed"):
        if info.config.get(name) is True:
            raise UnsupportedStreamError(
                f"stream {info.name!r} does not let messages be purged ({name}), which is how they leave a work queue "
                "when they are processed; consume a queue that does, or a stream with limits that sources this one"
            )


def check_direct(js: JetStream, info: StreamInfo) -> None:
    """Check that a work queue can be read without a consumer.

    Raises:
        UnsupportedStreamError: it cannot, as it is configured, or by such an old server.
    """
    if js.connection.info.is_older_than(2, 11):
        raise _too_old(js, "2.11", "reading a work queue")
    if not allows_direct_gets(info.config):
        raise UnsupportedStreamError(
            f"stream {info.name!r} does not allow direct gets, by which alone a work queue can be read without taking "
            f"messages away: set allow_direct in its configuration (nats stream edit {info.name} --allow-direct)"
        )


def _too_old(js: JetStream, wanted: str, what: str) -> UnsupportedStreamError:
    return UnsupportedStreamError(
        f"{what} needs nats-server {wanted} or newer, and {js.connection.server} is {js.connection.info.version}; "
        "bring the servers up to date"
    )
