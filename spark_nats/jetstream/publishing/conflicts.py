"""Decides about rows that were not stored because they expect another last message of their subject.

A row may name the last message that its subject must have (:data:`~spark_nats.protocol.headers.EXPECTED_REVISION`). The
publisher awaits the answers to such rows before it sends others, and a resolver decides about each refused one. A
stream with one replica checks the expectation before the message id, so a row that is sent again may conflict with
itself; a stream with several replicas checks the message id first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.publishing.flight import Rows
from spark_nats.jetstream.publishing.recovery import PublishLedger
from spark_nats.jetstream.reading.stored import ask_which_ids_are_known
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.bytecolumns import Mask
from spark_nats.protocol.headers import EXPECTED_REVISION, parse_block
from spark_nats.protocol.publish_acks import Verdict, conflict_reason


class Conflict(NamedTuple):
    """A row that was not stored, because its subject has another last message than it names."""

    row: int  # its number
    subject: str  # the row's subject
    header: bytes  # its header block
    reason: str  # the server's words


class Resolution(NamedTuple):
    """The decision about a conflicting row; with none of these values, the row is skipped."""

    stored: bool = False  # whether an earlier attempt has stored it
    header: bytes | None = None  # header block with which it is sent again; None when it is not
    reason: str = ""  # why the row is refused for what it expects, if it is


ConflictResolver = Callable[[JetStream, Conflict], Resolution]


def try_resolve_conflicts(
    js: JetStream,
    ledger: PublishLedger,
    request_state: Callable[[JetStream], StreamInfo],
    resolve: ConflictResolver | None,
) -> bool:
    """Decide about the conflicting rows in flight, each by itself; return whether one of them is no error.

    That is a row that is stored already, skipped, or sent again, now or later. Any other row stays a conflict; its
    reason says what it expected, or is the resolver's. ``resolve`` decides about rows whose message ids the stream does
    not know; without a resolver, these rows are errors.
    """
    flight, resolve = ledger.flight, resolve or _refuse_conflict
    conflicts = [each for each in flight.refused.values() if each.verdict is Verdict.CONFLICT]
    rows = [flight.row(each.message) for each in conflicts]
    found: list[Resolution] = []
    for each, row, is_known in zip(
        conflicts, rows, _ask_which_ids_are_known(js, rows, request_state).tolist(), strict=True
    ):
        conflict = Conflict(each.row, each.subject, row.header(0), each.reason)
        found.append(Resolution(stored=True) if is_known else resolve(js, conflict))
    for each, row, resolution in zip(conflicts, rows, found, strict=True):
        if resolution.reason:
            flight.refused[each.message] = each._replace(reason=resolution.reason)
        elif resolution.header == row.header(0):  # it would conflict again: it has to wait
            flight.refused[each.message] = each._replace(verdict=Verdict.TOO_MANY)
        else:
            ledger.acknowledged.duplicates += resolution.stored and not row.again
            ledger.skipped += resolution.header is None and not resolution.stored
            flight.note_resend_or_done(each.message, resolution.header)
    return any(not each.reason for each in found)


def _ask_which_ids_are_known(js: JetStream, rows: list[Rows], state: Callable[[JetStream], StreamInfo]) -> Mask:
    """Return a mask of the rows whose message ids the stream knows.

    No row is marked when one has no id, or when the stream has several replicas and so has looked at the ids itself.
    """
    if any(row.ids is None for row in rows) or (stream := state(js)).replicas > 1:
        return np.zeros(len(rows), np.bool_)
    subjects = pa.concat_arrays([row.subjects for row in rows])
    ids = pa.concat_arrays([row.ids for row in rows])
    return ask_which_ids_are_known(js.connection, stream.name, stream.domain, subjects, ids)


def _refuse_conflict(_: JetStream, conflict: Conflict) -> Resolution:
    """Refuse a row, and say what it expected of its subject's last message, if anything."""
    expected = parse_block(conflict.header).get(EXPECTED_REVISION)
    return Resolution(reason=conflict.reason if expected is None else conflict_reason(expected[0], conflict.reason))
