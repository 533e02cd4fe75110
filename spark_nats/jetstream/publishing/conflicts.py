"""Rows that were not stored, because their subjects have other last messages than they name.

A row may name the last message that its subject must have (:data:`~spark_nats.protocol.headers.EXPECTED_REVISION`).
Such rows are all awaited before others are sent; whoever gave them decides about each that the stream did not take. A
server of its own looks at that before it looks at the message id, so a row that is sent again may conflict with itself;
a cluster looks at the message id first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.publishing.acknowledged import PublishLedger
from spark_nats.jetstream.publishing.rows import Rows
from spark_nats.jetstream.reading.stored import known_ids
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.bytecolumns import Mask
from spark_nats.protocol.headers import EXPECTED_REVISION, parse_block
from spark_nats.protocol.publish_acks import Verdict, expecting


class Conflict(NamedTuple):
    """A row that was not stored, because its subject has another last message than it names."""

    row: int
    subject: str  # where it was to be stored
    header: bytes  # its header block
    reason: str  # the server's words


class Resolution(NamedTuple):
    """What becomes of such a row."""

    stored: bool = False  # whether the stream has it by an earlier attempt
    header: bytes | None = None  # with what header block it is to be sent again; None when it is not
    reason: str = ""  # why the row is refused for what it expects, where it is


ConflictResolver = Callable[[JetStream, Conflict], Resolution]


def resolve_conflicts(
    js: JetStream, ledger: PublishLedger, state: Callable[[JetStream], StreamInfo], resolve: ConflictResolver | None
) -> bool:
    """Decide about rows under way whose subjects have other last messages than they name, each by itself.

    Of what is decided none is a conflict any more. ``resolve`` decides about rows that the stream does not have; they
    are errors when it is None. ``state`` asks for the stream's state. Returns whether anything is decided.
    """
    flight = ledger.flight
    conflicts = [each for each in flight.refused.values() if each.verdict is Verdict.CONFLICT]
    rows = [flight.row(each.message) for each in conflicts]
    found: list[Resolution | None] = []
    for each, row, is_known in zip(conflicts, rows, _known(js, rows, state).tolist(), strict=True):
        if is_known:
            found.append(Resolution(stored=True))
        else:
            conflict = Conflict(each.row, each.subject, row.header(0), each.reason)
            found.append(resolve(js, conflict) if resolve is not None else None)
    for each, row, resolution in zip(conflicts, rows, found, strict=True):
        if resolution is None:
            flight.refused[each.message] = each._replace(reason=_explain(row, each.reason))
        elif resolution.reason:
            flight.refused[each.message] = each._replace(reason=resolution.reason)
        elif resolution.header == row.header(0):  # nothing is settled by that: it has to wait
            flight.refused[each.message] = each._replace(verdict=Verdict.TOO_MANY)
        else:
            ledger.acknowledged.duplicates += resolution.stored and not row.again
            ledger.skipped += resolution.header is None and not resolution.stored
            flight.resolve(each.message, resolution.header)
    return any(each is not None and not each.reason for each in found)


def _known(js: JetStream, rows: list[Rows], state: Callable[[JetStream], StreamInfo]) -> Mask:
    """Tell which of these rows a stream with one replica has stored, by their message ids."""
    if any(row.ids is None for row in rows) or (stream := state(js)).replicas > 1:
        return np.zeros(len(rows), np.bool_)
    subjects = pa.concat_arrays([row.subjects for row in rows])
    return known_ids(js.connection, stream.name, subjects, pa.concat_arrays([row.ids for row in rows]))


def _explain(row: Rows, reason: str) -> str:
    """Say what a row expected of its subject's last message, where it did."""
    expected = parse_block(row.header(0)).get(EXPECTED_REVISION)
    return reason if expected is None else expecting(expected[0], reason)
