"""Micro-batches of core NATS kept in files until they are processed, so that a crash of the driver loses none.

``<location>/<epoch>/<number of the message behind the micro-batch>.arrow`` holds the pieces as they were received. Only
the driver reads and writes here; executors get what they need with their partitions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from spark_nats.client.receiver import Piece
from spark_nats.errors import NatsError

_SCHEMA = pa.schema([("wire", pa.large_binary()), ("messages", pa.int64()), ("received", pa.int64())])


class Spool:
    """Files of one query below a directory or URI.

    Args:
        location: a path, or a URI that ``pyarrow.fs`` knows, such as ``s3://bucket/path``.

    Raises:
        NatsError: it cannot be used.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        with self._errors("opened"):
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
        with self._errors("written"):
            self._fs.create_dir(f"{self._root}/{epoch}", recursive=True)
            columns = zip(*pieces, strict=True)
            table = pa.table(
                [pa.array(column, each.type) for column, each in zip(columns, _SCHEMA, strict=True)], _SCHEMA
            )
            with (
                self._fs.open_output_stream(self._path(epoch, end)) as file,
                pa.ipc.new_stream(file, _SCHEMA) as writer,
            ):
                writer.write_table(table)

    def read(self, epoch: str, end: int) -> list[Piece] | None:
        """Return a micro-batch that was kept, None when there is none.

        Raises:
            NatsError: it cannot be read.
        """
        with self._errors("read"):
            path = self._path(epoch, end)
            if self._fs.get_file_info(path).type is not fs.FileType.File:
                return None
            with self._fs.open_input_stream(path) as file, pa.ipc.open_stream(file) as reader:
                return [Piece(*row) for row in zip(*(c.to_pylist() for c in reader.read_all().columns), strict=True)]

    def remove(self, epoch: str, before: int | None = None) -> None:
        """Remove an epoch's micro-batches, those that end at ``before`` or earlier if it is given.

        Raises:
            NatsError: they cannot be removed.
        """
        with self._errors("removed"):
            folder = f"{self._root}/{epoch}"
            if before is None:
                if self._fs.get_file_info(folder).type is fs.FileType.Directory:
                    self._fs.delete_dir(folder)
                return
            for file in self._fs.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
                stem = file.base_name.removesuffix(".arrow")
                if stem.isdigit() and int(stem) <= before:
                    self._fs.delete_file(file.path)

    def _path(self, epoch: str, end: int) -> str:
        return f"{self._root}/{epoch}/{end}.arrow"

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise NatsError(
                f"the spool of the option 'spoolLocation' ({self._location!r}) cannot be {what}: {error}; "
                "it must be a directory or a URI that the driver may write"
            ) from None
