"""Tells when a position that was reached under some subjects says nothing of others that a query reads.

A position is one sequence of the whole stream. Who reaches it under a filter has read nothing of other subjects before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_nats.jetstream.matching import subjects_read
from spark_nats.jetstream.messages import next_sequence
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.kinds.streams.read.conditions import SUBJECTS_ADDED
from spark_nats.kinds.streams.read.looks import Look
from spark_nats.kinds.streams.read.losses import Loss
from spark_nats.kinds.streams.read.positions import SUBJECTS
from spark_nats.protocol.subjects import covers

_SHOWN = 5


def unread_before(look: Look, info: StreamInfo, sequence: int, read: Sequence[str]) -> tuple[str, ...]:
    """Return the query's subjects that are not among those ``read``, if there is such a message before a sequence.

    Raises:
        NatsError: the request failed. Nothing is asked if what was read covers what the query reads.
    """
    filters = look.options.filters
    others = tuple(
        each for each in subjects_read(info, filters) if read and not any(covers(wider, each) for wider in read)
    )
    if not others or sequence <= info.first_sequence:
        return ()
    found = next_sequence(look.js, info.name, info.first_sequence, others, not info.undisputed)
    return others if found is not None and found < sequence else ()


def left_out(look: Look, info: StreamInfo, sequence: int, read: Sequence[str]) -> list[Loss]:
    """Return what a query leaves out that goes on at a sequence, which a query of the subjects ``read`` has reached.

    Raises:
        NatsError: as :func:`unread_before` does.
    """
    added = unread_before(look, info, sequence, read)
    last = sequence - 1
    said = SUBJECTS_ADDED(stream=info.name, sequence=last, read=shown(read), added=shown(added))
    return [Loss(said, f"what comes after sequence {last}")] if added else []


def noted_subjects(offset: Mapping[str, Any], filters: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return under which subjects the streams of an offset were read, if it notes others than the query's now.

    In an offset of many streams, one entry notes them for those that have short ones.
    """
    found = {name: tuple(entry[SUBJECTS]) for name, entry in offset.items() if SUBJECTS in entry}
    found = {name: read for name, read in found.items() if sorted(read) != sorted(filters)}
    others = next(iter(found.values()), ())
    return {name: found.get(name, others) for name, entry in offset.items() if name in found or isinstance(entry, str)}


def shown(subjects: Sequence[str]) -> str:
    """Return subjects as a text for people; only the first ones of many."""
    more = f" and {len(subjects) - _SHOWN} more" if len(subjects) > _SHOWN else ""
    return ", ".join(subjects[:_SHOWN]) + more
