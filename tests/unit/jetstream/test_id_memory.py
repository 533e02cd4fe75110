"""What tells that a stream may have forgotten message ids; `tests/simulation/upheavals.py` asks servers."""

from __future__ import annotations

from spark_nats.jetstream.id_memory import IdMemory

NOTED = IdMemory(created="2026-11-27T10:00:00Z", process="NABC", lifetime=120.0)


def test_ids_are_known_while_the_same_process_holds_the_same_stream() -> None:
    assert NOTED.knows_all(NOTED, 1.0)


def test_a_restored_stream_is_not_relied_on_though_its_server_goes_on() -> None:
    restored = NOTED._replace(created="2026-11-27T10:00:05Z")
    assert not NOTED.knows_all(restored, 1.0)
    assert not NOTED.knows_present(restored, 1.0)
