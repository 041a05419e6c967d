"""One Parquet file: its identity, and its rows as a stream of batches.

Memory is bounded by a batch, whatever the size of row groups: pages are read as they are needed. Batches are cut at
the same rows each time, so that the broker recognises a batch that is sent again.
"""

import contextlib
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.migration.sources import FileSource, FoundFile
from icestream.model.errors import DamagedError, IcestreamError

PRODUCER_PREFIX = "migrate-"
_OPERATION = "read Parquet"
_MAGIC = b"PAR1"
_TAIL_BYTES = 8
_BUFFER_BYTES = 1024 * 1024
_REMEDY = "restore the file or leave it out; the others are not held up by it"


class Identity(NamedTuple):
    """Identifies a file by its path and content. The footer, which lists every part, stands for the content."""

    path: str
    content: str

    @classmethod
    def parse(cls, producer: str) -> "Identity | None":
        parts = producer.removeprefix(PRODUCER_PREFIX).split("-")
        return cls(*parts) if producer.startswith(PRODUCER_PREFIX) and len(parts) == len(cls._fields) else None

    @property
    def producer(self) -> str:
        """The producer name of the file's rows. They are numbered from 0."""
        return f"{PRODUCER_PREFIX}{self.path}-{self.content}"


class RowSlice(NamedTuple):
    row: int
    """The number of the first row in the file."""
    row_group: int
    batch: pa.RecordBatch


class ParquetSource:
    """An open file. Damage raises a `DamagedError` that names the file."""

    def __init__(self, source: FileSource, found: FoundFile) -> None:
        self._found = found
        self._threads = not source.is_remote  # a Python file has one read position
        self._file = source.open(found)
        try:
            self.identity = self._identify()
            with self._damage("its footer cannot be read"):
                # Arrow reads a path without Python's lock.
                what: Any = self._file if source.is_remote else found.place
                self._parquet = pq.ParquetFile(what, buffer_size=_BUFFER_BYTES, pre_buffer=False)
                self.schema: pa.Schema = self._parquet.schema_arrow.remove_metadata()
                self.rows: int = self._parquet.metadata.num_rows
                self.row_groups: int = self._parquet.num_row_groups
        except BaseException:
            self._file.close()
            raise

    def _identify(self) -> Identity:
        size = self._found.size
        self._file.seek(max(0, size - _TAIL_BYTES))
        tail = self._file.read(_TAIL_BYTES)
        length = int.from_bytes(tail[:4], "little")
        if size < _TAIL_BYTES + len(_MAGIC) or tail[4:] != _MAGIC or length + _TAIL_BYTES > size:
            raise self._damaged("it does not end as a Parquet file does")
        self._file.seek(size - _TAIL_BYTES - length)
        footer = self._file.read(length)
        path = blake2b(self._found.known_as.encode(errors="surrogateescape"), digest_size=8)
        content = blake2b(footer + size.to_bytes(8, "little"), digest_size=16)
        return Identity(path.hexdigest(), content.hexdigest())

    def slices(self, columns: list[str], batch_rows: int, start: int = 0) -> Iterator[RowSlice]:
        """Yield the rows from `start` on, at most `batch_rows` a batch, never across row groups."""
        row = 0
        for group in range(self.row_groups):
            count = self._parquet.metadata.row_group(group).num_rows
            if row + count <= start:
                row += count
                continue
            with self._damage(f"row group {group} cannot be read"):
                for batch in self._parquet.iter_batches(
                    batch_size=batch_rows, row_groups=[group], columns=columns, use_threads=self._threads
                ):
                    if row + batch.num_rows > start:
                        first = max(0, start - row)
                        yield RowSlice(row + first, group, batch.slice(first))
                    row += batch.num_rows

    def first_row(self, columns: list[str]) -> pa.RecordBatch | None:
        """Return some columns of the first row; None if there are no rows."""
        return next((one.batch for one in self.slices(columns, 1)), None)

    @contextlib.contextmanager
    def _damage(self, what: str) -> Iterator[None]:
        try:
            yield
        except IcestreamError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(f"{what}: {str(error).splitlines()[0]}") from error

    def _damaged(self, what: str) -> DamagedError:
        return DamagedError(what, operation=_OPERATION, place=self._found.path, remedy=_REMEDY)

    def close(self) -> None:
        self._parquet.close(force=True)
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
