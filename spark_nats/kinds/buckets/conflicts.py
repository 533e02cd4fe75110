"""Rows that a KV bucket refused, because their keys have other revisions than the rows expect.

Another writer was faster, or the key was deleted and has to be created again. Or an earlier attempt stored the row, and
the stream no longer knows its message id. The revisions that the key has got since show which of these is the case.
"""

from __future__ import annotations

import logging
import re

from spark_nats.errors import PublishError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.messages import ask_first_message_from, ask_last_message
from spark_nats.jetstream.publishing.conflicts import Conflict, Resolution
from spark_nats.jetstream.reading.stored import has_id_of
from spark_nats.kinds.buckets.conditions import ENTRY_CONFLICTS, ENTRY_REFUSED
from spark_nats.kinds.buckets.key_columns import is_deletion
from spark_nats.protocol.bytecolumns import texts
from spark_nats.protocol.headers import EXPECTED_REVISION, MSG_ID, parse_block
from spark_nats.protocol.keyvalue import MAX_HISTORY, key_subject, stream_of

logger = logging.getLogger(__name__)


class Conflicts:
    """Decides what becomes of the refused rows of one task.

    Args:
        bucket: the bucket.
        api_prefix: first tokens of the API's subjects.
        skips: whether rows that conflict are left out.
        sets_aside: whether they become bad rows, unless ``skips``. They are errors when both are false.
    """

    def __init__(self, bucket: str, api_prefix: str, skips: bool, sets_aside: bool) -> None:
        self._skips = skips
        self._sets_aside = sets_aside
        self._bucket = bucket
        self._stream = stream_of(bucket)
        self._again: set[int] = set()  # rows that create a deleted key again: they now expect its marker, or 0
        # With an API prefix, a key is published on another subject than it is stored on.
        self._published = key_subject(bucket, "", api_prefix)

    def resolve_or_raise(self, js: JetStream, conflict: Conflict) -> Resolution:
        """Decide about one row.

        Raises:
            PublishError: the row conflicts, and that is an error; or it names no revision, and so cannot conflict.
            NatsError: a request to the bucket failed.
        """
        headers = parse_block(conflict.header)
        named, ids = headers.get(EXPECTED_REVISION, [""])[0], headers.get(MSG_ID)
        if not re.fullmatch("[0-9]{1,19}", named):
            raise PublishError(ENTRY_REFUSED(row=conflict.row, reason=conflict.reason))
        key = conflict.subject.removeprefix(self._published)
        subject = key_subject(self._bucket, key)
        if ids and self._ask_if_stored(js, subject, int(named), ids[0]):
            return Resolution(stored=True)
        last = ask_last_message(js, self._stream, subject)
        actual = last.sequence if last else 0
        expected = 0 if conflict.row in self._again else int(named)
        if actual == int(named):  # the expectation holds by now
            return Resolution(header=conflict.header)
        if expected == 0 and (last is None or is_deletion(last.header)):
            # The key was deleted. To create it again, the row must expect the revision of the deletion (ADR-8), or 0
            # when that has expired.
            self._again.add(conflict.row)
            before, after = (f"\r\n{EXPECTED_REVISION}: {each}\r\n".encode() for each in (named, actual))
            return Resolution(header=conflict.header.replace(before, after))
        if self._skips:
            logger.debug("row %d (key %r) is skipped: %s", conflict.row, key, conflict.reason)
            return Resolution()
        has = f"has the revision {actual}" if actual else "does not exist"
        wants = f"its expected_revision is {expected}" + ("" if expected else ", by which it is to be created")
        said = ENTRY_CONFLICTS(row=conflict.row, key=key, bucket=self._bucket, has=has, wants=wants)
        if self._sets_aside:
            return Resolution(reason=said)
        raise PublishError(said)

    def _ask_if_stored(self, js: JetStream, subject: str, expected: int, message_id: str) -> bool:
        """Return whether the key has a revision with that message id after the expected one."""
        sequence = expected
        for _ in range(MAX_HISTORY):
            message = ask_first_message_from(js, self._stream, sequence + 1, [subject])
            if message is None:
                return False
            if has_id_of(message.header, texts([message_id])):
                return True
            sequence = message.sequence
        return False
