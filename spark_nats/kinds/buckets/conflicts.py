"""Rows for a KV bucket that it did not take, because their keys have other revisions than they expect.

Somebody was faster, or the key has to be created anew; or the row was stored by an earlier attempt that its message id
does not tell any more. Which of these it is, the revisions tell that the key has got since.
"""

from __future__ import annotations

import logging
import re

from spark_nats.errors import PublishError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.messages import last_message, next_message
from spark_nats.jetstream.publishing.conflicts import Conflict, Resolution
from spark_nats.jetstream.reading.stored import has_id_of
from spark_nats.kinds.buckets.conditions import ENTRY_CONFLICTS, ENTRY_REFUSED
from spark_nats.kinds.buckets.key_columns import is_marker
from spark_nats.protocol.bytecolumns import texts
from spark_nats.protocol.headers import EXPECTED_REVISION, MSG_ID, parse_block
from spark_nats.protocol.keyvalue import MAX_HISTORY, key_subject, stream_of

logger = logging.getLogger(__name__)


class Conflicts:
    """Decides what becomes of such rows of one task.

    Args:
        bucket: the bucket.
        api_prefix: what requests to JetStream begin with.
        skips: whether they are left out.
        sets_aside: whether they are handed over to what takes rows that cannot be sent. Without either they are errors.
    """

    def __init__(self, bucket: str, api_prefix: str, skips: bool, sets_aside: bool) -> None:
        self._skips = skips
        self._sets_aside = sets_aside
        self._bucket = bucket
        self._stream = stream_of(bucket)
        self._again: set[int] = set()  # rows that are to create a key that was deleted: they name what says so
        # With a prefix, a key is published elsewhere than it is stored.
        self._published = key_subject(bucket, "", api_prefix)

    def resolve(self, js: JetStream, conflict: Conflict) -> Resolution:
        """Decide about one row.

        Raises:
            PublishError: it conflicts, and that is an error.
            NatsError: the bucket could not be asked.
        """
        headers = parse_block(conflict.header)
        named, ids = headers.get(EXPECTED_REVISION, [""])[0], headers.get(MSG_ID)
        if not re.fullmatch("[0-9]{1,19}", named):
            raise PublishError(ENTRY_REFUSED(row=conflict.row, reason=conflict.reason))
        key = conflict.subject.removeprefix(self._published)
        subject = key_subject(self._bucket, key)
        if ids and self._is_stored(js, subject, int(named), ids[0]):
            return Resolution(stored=True)
        last = last_message(js, self._stream, subject)
        actual = last.sequence if last else 0
        expected = 0 if conflict.row in self._again else int(named)
        if actual == int(named):  # since then it is so
            return Resolution(header=conflict.header)
        if expected == 0 and (last is None or is_marker(last.header)):
            # The key was deleted. To create it again, the revision that says so has to be named (ADR-8), and none when
            # that has expired.
            self._again.add(conflict.row)
            return Resolution(header=_expecting(conflict.header, named, actual))
        if self._skips:
            logger.debug("row %d (key %r) is skipped: %s", conflict.row, key, conflict.reason)
            return Resolution()
        has = f"has the revision {actual}" if actual else "does not exist"
        wants = f"its expected_revision is {expected}" + ("" if expected else ", by which it is to be created")
        said = ENTRY_CONFLICTS(row=conflict.row, key=key, bucket=self._bucket, has=has, wants=wants)
        if self._sets_aside:
            return Resolution(reason=said)
        raise PublishError(said)

    def _is_stored(self, js: JetStream, subject: str, expected: int, message_id: str) -> bool:
        """Tell whether the key has got a revision of that message id since the one that was expected."""
        sequence = expected
        for _ in range(MAX_HISTORY):
            message = next_message(js, self._stream, sequence + 1, [subject])
            if message is None:
                return False
            if has_id_of(message.header, texts([message_id])):
                return True
            sequence = message.sequence
        return False


def _expecting(header: bytes, named: str, revision: int) -> bytes:
    """Return a header block that expects a revision instead of the one that it names."""
    before, after = (f"\r\n{EXPECTED_REVISION}: {expected}\r\n".encode() for expected in (named, revision))
    return header.replace(before, after)
