"""What servers make of subjects, as tests/integration/jetstream/publishing/test_atomic.py sees it of real ones."""

from __future__ import annotations

import pytest

from spark_nats.protocol.subjects import transform_subject


@pytest.mark.parametrize(
    ("src", "dest", "subject", "made"),
    [
        ("S.*", "T.{{wildcard(1)}}", "S.a", "T.a"),
        ("S.*.*", "T.{{ Wildcard(2) }}.$1", "S.a.b", "T.b.a"),
        ("S.*.*", "T.$1", "S.a.b", "T.a"),
        ("S.>", "T.>", "S.a.b", "T.a.b"),
        ("S.*.>", "T.$1.x.>", "S.a.b.c", "T.a.x.b.c"),
        ("S.>", "T.>", "S", "S"),
        ("S.*", "T.$1", "S.a.b", "S.a.b"),
        ("S.*", "T.$1", "R.a", "R.a"),
        ("", "T.>", "S.a", "T.S.a"),
        ("S.*", "T.{{partition(3,1)}}", "S.a", None),
        ("S.*", "T.$2", "S.a", None),
    ],
)
def test_a_transform_moves_tokens(src: str, dest: str, subject: str, made: str | None) -> None:
    assert transform_subject(subject, {"src": src, "dest": dest}) == made
