"""A file of the spool gives back what was written into it, or is told to be damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.kinds.core.backlog import Piece
from spark_nats.kinds.core.spool import Spool, SpoolDamageError

PIECES = [Piece(b"MSG a 1 2\r\nhi\r\n", 1, 1_793_491_200_000_000), Piece(b"MSG b 1 0\r\n\r\n" * 2, 2, 5)]
EPOCH = "0123456789abcdef"


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Spool, Path]:
    """A spool, and its only file."""
    spool = Spool(str(tmp_path))
    spool.write(EPOCH, 3, PIECES)
    (file,) = tmp_path.glob("*/*")
    assert spool.read_micro_batch(EPOCH, 3) == PIECES
    return spool, file


def said(spool: Spool) -> str:
    with pytest.raises(SpoolDamageError) as raised:
        spool.read_micro_batch(EPOCH, 3)
    return str(raised.value)


def test_a_file_that_was_cut_off_anywhere_is_damaged(kept: tuple[Spool, Path]) -> None:
    spool, file = kept
    whole = file.read_bytes()
    assert len(whole) > 300
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        message = said(spool)
        assert f"the file '{file}' of the spool {'was cut off' if length else 'is empty'}" in message
    file.write_bytes(whole)
    assert spool.read_micro_batch(EPOCH, 3) == PIECES


@pytest.mark.parametrize("change", [0x01, 0x20, 0x80, 0xFF])
def test_a_file_in_which_any_byte_was_changed_is_damaged(kept: tuple[Spool, Path], change: int) -> None:
    spool, file = kept
    whole = file.read_bytes()
    for i in range(len(whole)):
        file.write_bytes(whole[:i] + bytes([whole[i] ^ change]) + whole[i + 1 :])
        assert str(file) in said(spool)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda whole: whole + b"\n", "the last of its {} bytes are not a seal"),
        (lambda whole: whole + whole[-105:], "should have {} bytes before its seal and has"),
        (lambda whole: whole[1:], "should have {} bytes before its seal and has"),
        (lambda whole: whole[:8] + b"X" + whole[9:], "was changed: its checksum is wrong"),
        (lambda whole: bytes(len(whole)), "was cut off or is not one of ours"),
        (lambda whole: b"PAR1" * 200, "was cut off or is not one of ours"),
        (lambda whole: whole[:-105], "was cut off or is not one of ours"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    kept: tuple[Spool, Path], damage: Callable[[bytes], bytes], words: str
) -> None:
    spool, file = kept
    whole = file.read_bytes()
    damaged = damage(whole)
    file.write_bytes(damaged)
    message = said(spool)
    assert words.split("{}")[0] in message
    assert words.split("{}")[-1] in message


@settings(max_examples=75)
@given(
    st.lists(
        st.builds(Piece, st.binary(max_size=20), st.integers(1, 9), st.integers(0, 2**50)), min_size=1, max_size=60
    ),
    st.data(),
)
def test_what_is_read_is_what_was_written_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[Piece], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool = Spool(str(folder))
    spool.write(EPOCH, 3, pieces)
    (file,) = folder.glob("*/*")
    whole = file.read_bytes()
    assert spool.read_micro_batch(EPOCH, 3) == pieces
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
    damaged = whole[:start] + data.draw(st.binary(max_size=8)) + whole[end:]
    file.write_bytes(damaged)
    if damaged == whole:
        assert spool.read_micro_batch(EPOCH, 3) == pieces
    else:
        said(spool)


def test_a_micro_batch_of_many_pieces_comes_back_in_its_order(tmp_path: Path) -> None:
    pieces = [Piece(b"%d" % i * 1000, i, -i) for i in range(1, 100)]
    spool = Spool(str(tmp_path))
    spool.write(EPOCH, 3, pieces)
    assert spool.read_micro_batch(EPOCH, 3) == pieces
    spool.write(EPOCH, 3, pieces[:1])  # it is written again when Spark asks again
    assert spool.read_micro_batch(EPOCH, 3) == pieces[:1]
