"""Micro-batches of core NATS kept in files until they are processed, so that a crash of the driver loses none.

``<location>/<epoch>/<number of the message after the micro-batch>.arrow`` holds the pieces as they were received, in an
Arrow stream. A seal follows it, the line ``spark-nats spool 1 <bytes> <BLAKE2b>`` with the length of that stream in 20
digits and its checksum, which shows whether a file was cut off or changed. Only the driver reads and writes here;
executors get what they need with their partitions. Numbers begin with 1 in each epoch, and a file begins where the one
before it ends.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from spark_nats.errors import NatsError
from spark_nats.kinds.core.backlog import Piece
from spark_nats.kinds.core.conditions import SPOOL_FAILED

_SCHEMA = pa.schema([("wire", pa.large_binary()), ("messages", pa.int64()), ("received", pa.int64())])
_PIECES_AT_ONCE = 16  # each has at most a few MiB, so memory does not hold a large micro-batch twice
_SEAL = re.compile(rb"spark-nats spool 1 (\d{20}) ([0-9a-f]{64})\n")
_SEAL_LENGTH = 105


class SpoolDamageError(Exception):
    """A file of the spool is not what was written; the text names the file and the damage."""


class Spool:
    """Files of one query below a directory or URI.

    Args:
        location: a path, or a URI that ``pyarrow.fs`` knows, such as ``s3://bucket/path``.

    Raises:
        NatsError: the location cannot be used.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        with self._reporting_errors("opened"):
            if "://" in location:
                self._fs, self._root = fs.FileSystem.from_uri(location)
            else:
                self._fs, self._root = fs.LocalFileSystem(), str(Path(location).absolute())
            self._fs.create_dir(self._root, recursive=True)

    def write(self, epoch: str, end: int, pieces: Sequence[Piece]) -> None:
        """Keep the micro-batch that ends before message ``end``.

        Raises:
            NatsError: it cannot be written.
        """
        with self._reporting_errors("written"):
            self._fs.create_dir(f"{self._root}/{epoch}", recursive=True)
            digest, size = blake2b(digest_size=32), 0
            draft = f"{self._root}/{epoch}/{end}.draft"  # Spark may end the process at any time
            with self._fs.open_output_stream(draft) as file:
                for part in _arrow_stream(pieces):
                    digest.update(part)
                    size += part.size
                    file.write(part)
                file.write(b"spark-nats spool 1 %020d %b\n" % (size, digest.hexdigest().encode()))
            self._fs.move(draft, self._path(epoch, end))

    def list_ends(self, epoch: str) -> list[int]:
        """Return where the micro-batches end that are kept of an epoch, in order.

        Raises:
            NatsError: they cannot be listed.
        """
        with self._reporting_errors("read"):
            return sorted(self._list_files_by_end(epoch))

    def read_micro_batch(self, epoch: str, end: int) -> list[Piece] | None:
        """Return a micro-batch that was kept; None when there is none.

        Raises:
            SpoolDamageError: its file is not what was written.
            NatsError: it cannot be read.
        """
        with self._reporting_errors("read"):
            path = self._path(epoch, end)
            if self._fs.get_file_info(path).type is not fs.FileType.File:
                return None
            with self._fs.open_input_file(path) as file:
                content = file.read_buffer()
            if wrong := _find_damage(content):
                raise SpoolDamageError(f"the file {path!r} of the spool {wrong}")
            with pa.ipc.open_stream(content.slice(0, content.size - _SEAL_LENGTH)) as reader:
                return [Piece(**row) for row in reader.read_all().to_pylist()]

    def remove(self, epoch: str, before: int | None = None) -> None:
        """Remove an epoch's micro-batches; if ``before`` is given, only those that end at it or earlier.

        Raises:
            NatsError: they cannot be removed.
        """
        with self._reporting_errors("removed"):
            folder = f"{self._root}/{epoch}"
            if before is None:
                if self._fs.get_file_info(folder).type is fs.FileType.Directory:
                    self._fs.delete_dir(folder)
                return
            for end, path in self._list_files_by_end(epoch).items():
                if end <= before:
                    self._fs.delete_file(path)

    def _list_files_by_end(self, epoch: str) -> dict[int, str]:
        found = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{epoch}", allow_not_found=True))
        stems = {file.base_name.removesuffix(".arrow"): file.path for file in found}
        return {int(stem): path for stem, path in stems.items() if stem.isdigit()}

    def _path(self, epoch: str, end: int) -> str:
        return f"{self._root}/{epoch}/{end}.arrow"

    @contextlib.contextmanager
    def _reporting_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise NatsError(SPOOL_FAILED(location=self._location, done=what, reason=error)) from None


def _arrow_stream(pieces: Sequence[Piece]) -> Iterator[pa.Buffer]:
    yield _SCHEMA.serialize()
    for start in range(0, len(pieces), _PIECES_AT_ONCE):
        rows = [piece._asdict() for piece in pieces[start : start + _PIECES_AT_ONCE]]
        yield pa.RecordBatch.from_pylist(rows, _SCHEMA).serialize()


def _find_damage(content: pa.Buffer) -> str | None:
    """Return what is wrong with the content of a file; None when it is what was written."""
    if content.size == 0:
        return "is empty"
    seal = _SEAL.fullmatch(content.slice(max(0, content.size - _SEAL_LENGTH)))
    if seal is None:
        return f"was cut off or is not one of ours: the last of its {content.size} bytes are not a seal"
    stream = content.slice(0, content.size - _SEAL_LENGTH)
    if int(seal[1]) != stream.size:
        return f"should have {int(seal[1])} bytes before its seal and has {stream.size}"
    if blake2b(stream, digest_size=32).hexdigest().encode() != seal[2]:
        return "was changed: its checksum is wrong"
    return None
