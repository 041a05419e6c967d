"""The journal: which rows of which files are in the topic. The topic itself says so.

A file's rows are published by a producer with the file's name and numbered from 0, so the topic's `producer` and
`sequence` columns are the journal. It cannot be lost, and it cannot disagree with what was published.

The broker recognises repeated batches of the last few thousand producers. During a long migration the topic is asked
again for what other runs have published: the broker may have forgotten the producer of a file that another run finished
long ago.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from icestream.client import Client
from icestream.migration.mapping import envelope_of
from icestream.migration.parquet_files import PRODUCER_PREFIX, Identity, ParquetSource
from icestream.migration.report import FileReport, FileState
from icestream.migration.retries import with_retries
from icestream.migration.sources import FileSource, FoundFile
from icestream.migration.target import MigrationTarget
from icestream.model.errors import DamagedError, ObjectNotFoundError, OffsetOutOfRangeError
from icestream.model.messages import ENVELOPE, MESSAGE_SCHEMA, OFFSET
from icestream.model.names import TopicName

_END_OF_PREFIX = PRODUCER_PREFIX[:-1] + chr(ord(PRODUCER_PREFIX[-1]) + 1)
_UNSEEN_ROWS = 1_000
"""So many rows may come between two looks: they have fewer producers than a broker remembers."""


@dataclass(frozen=True)
class PublishedRows:
    """The rows that the topic has of one file."""

    rows: int = 0
    first_sequence: int = 0
    end_sequence: int = 0
    first_offset: int = 0
    end_offset: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it is the beginning of the file without a gap, each row once by its numbers."""
        return self.rows == self.end_sequence - self.first_sequence and (not self.rows or not self.first_sequence)

    def __add__(self, later: "PublishedRows") -> "PublishedRows":
        if not self.rows or not later.rows:
            return later if later.rows else self
        return PublishedRows(
            self.rows + later.rows,
            min(self.first_sequence, later.first_sequence),
            max(self.end_sequence, later.end_sequence),
            min(self.first_offset, later.first_offset),
            max(self.end_offset, later.end_offset),
        )


NOTHING = PublishedRows()


class Journal:
    def __init__(self, client: Client, topic: TopicName, *, is_plain: bool) -> None:
        """`is_plain`: the topic has no columns of its own."""
        self._client = client
        self._topic = topic
        self._names = [part.name if is_plain else f"_{part.name}" for part in ENVELOPE]
        self._present: dict[str, PublishedRows] = {}
        self._seen_end = 0
        self._own: dict[str, PublishedRows] = {}
        self._own_rows = 0

    def of(self, producer: str) -> PublishedRows:
        return self._present.get(producer, NOTHING) + self._own.get(producer, NOTHING)

    def producers(self) -> set[str]:
        return {*self._present, *self._own}

    def read(self) -> None:
        """Read what the topic has now."""
        end = self._end()
        if end - self._seen_end != self._own_rows:
            for producer, found in with_retries(lambda: self._ask(self._seen_end, end)).items():
                self._present[producer] = self._present.get(producer, NOTHING) + found
        else:  # only this migration has published
            for producer, found in self._own.items():
                self._present[producer] = self._present.get(producer, NOTHING) + found
        self._own, self._own_rows, self._seen_end = {}, 0, end

    def refresh(self) -> bool:
        """Read what came since, if it is so much that the broker may have forgotten its producers."""
        if is_much := self._end() - self._seen_end >= _UNSEEN_ROWS:
            self.read()
        return is_much

    def note(self, producer: str, sequence: int, offset: int, count: int) -> None:
        """Note acknowledged rows. Rows that were read before, or that another run published, are not counted twice."""
        if offset >= self._seen_end and sequence >= self.of(producer).end_sequence:
            found = PublishedRows(count, sequence, sequence + count, offset, offset + count)
            self._own[producer] = self._own.get(producer, NOTHING) + found
            self._own_rows += count

    def _end(self) -> int:
        return with_retries(lambda: self._client.describe_topic(self._topic)).durable_end

    def _ask(self, start: int, end: int) -> dict[str, PublishedRows]:
        if end <= start:
            return {}
        offset, _, producer, sequence = (f'"{name}"' for name in self._names)
        table = f'"{self._topic.namespace}"."{self._topic.name}"'
        found = self._client.sql(
            f"SELECT {producer}, count(*), min({sequence}), max({sequence}) + 1, min({offset}), max({offset}) + 1 "  # noqa: S608 - names were checked
            f"FROM {table} WHERE {producer} >= '{PRODUCER_PREFIX}' AND {producer} < '{_END_OF_PREFIX}' "
            f"AND {offset} >= {start} AND {offset} < {end} GROUP BY 1"
        )
        return {
            name: PublishedRows(*rest) for name, *rest in zip(*(column.to_pylist() for column in found), strict=True)
        }


class FileToCheck(Protocol):
    """What `DuplicateCheck` needs of a file."""

    found: FoundFile
    report: FileReport
    identity: Identity
    schema: pa.Schema


class DuplicateCheck:
    """Decides what to do with each file, from what the topic has of it and of files like it.

    A file whose rows may be in the topic under another name is refused: only its owner knows whether they are wanted
    twice, and says so with `again`.

    Another run may publish a copy meanwhile. So a file is checked again before its first row is sent, if others have
    published much, and again at the end: if two runs sent copies at the same time, the later one reports it.
    """

    def __init__(
        self, client: Client, source: FileSource, target: MigrationTarget, journal: Journal, *, again: bool
    ) -> None:
        self._client = client
        self._source = source
        self._target = target
        self._journal = journal
        self._again = again
        self._own_paths: set[str] = set()
        self._take_in()

    def _take_in(self) -> None:
        """Read the identities of all files in the journal."""
        self._contents: dict[str, set[str]] = defaultdict(set)
        self._paths: dict[str, set[str]] = defaultdict(set)
        for producer in self._journal.producers():
            if (identity := Identity.parse(producer)) is not None:
                self._contents[identity.path].add(identity.content)
                self._paths[identity.content].add(identity.path)

    def check(self, files: Sequence[FileToCheck]) -> None:
        self._own_paths = {file.identity.path for file in files}
        for file in files:
            self._check(file)

    def check_again(self, file: FileToCheck) -> bool:
        """Return whether a file's rows may still be sent, right before they are."""
        if self._journal.refresh():
            self._take_in()
            if not self._journal.of(file.identity.producer).rows:
                self._refuse_others(file)
        return file.report.state is not FileState.REFUSED

    def fail_concurrent_copies(self, files: Sequence[FileToCheck]) -> None:
        """Fail files that this run sent and that another run sent from another path at the same time."""
        self._take_in()
        for file in files:
            if file.report.published and not self._again and self._paths[file.identity.content] - self._own_paths:
                file.report.fail(
                    FileState.DIFFERENT,
                    "another migration published the same content from another path at the same time: "
                    "the topic has its rows twice",
                )

    def _check(self, file: FileToCheck) -> None:
        report, identity = file.report, file.identity
        present = self._journal.of(identity.producer)
        if not report.rows:
            report.state = FileState.EMPTY
        elif present.rows:
            report.state = FileState.PUBLISHED if present.end_sequence == report.rows else FileState.BEGUN
            if not present.is_whole or present.end_sequence > report.rows:
                report.fail(
                    FileState.DIFFERENT,
                    f"the topic has {present.rows} rows of it, numbered {present.first_sequence} to "
                    f"{present.end_sequence - 1}; `icestream verify` tells whether the log has lost some",
                )
        else:
            try:
                is_of_topic = self._is_of_topic(file)
            except (DamagedError, ObjectNotFoundError, OSError) as error:
                report.fail(FileState.DAMAGED, str(error))
                return
            if is_of_topic:
                report.fail(FileState.REFUSED, "its rows are in this topic, under the offsets that the file names")
            else:
                self._refuse_others(file)

    def _refuse_others(self, file: FileToCheck) -> None:
        """Refuse a file if the topic has another version of it, or the same content from another path."""
        report, identity = file.report, file.identity
        if self._again:
            return
        if self._contents[identity.path]:
            report.fail(
                FileState.REFUSED,
                "another version of this file was migrated before; --again adds this one",
            )
        elif self._paths[identity.content] - self._own_paths:
            report.fail(FileState.REFUSED, "the same content was migrated from another path; --again adds it once more")

    def _is_of_topic(self, file: FileToCheck) -> bool:
        """Return whether the file was written from this topic: the topic has its first row at the file's offset."""
        columns = envelope_of(file.schema)
        if columns is None or not self._target.exists:
            return False
        with ParquetSource(self._source, file.found) as opened:
            first = opened.first_row(columns)
        offset = None if first is None else first.column(OFFSET)[0].as_py()
        if first is None or offset is None:
            return False
        prefix = "" if self._target.schema.equals(MESSAGE_SCHEMA) else "_"
        names = [f"{prefix}{part.name}" for part in ENVELOPE]
        try:
            found = with_retries(lambda: self._client.read(self._target.topic, offset, offset + 1, columns=names))
        except OffsetOutOfRangeError:
            return False
        return bool(found.num_rows) and _values(found) == _values(pa.Table.from_batches([first]))


def _values(rows: pa.Table) -> list[Any]:
    casts = [column.cast(part.type) for column, part in zip(rows.columns, ENVELOPE, strict=True)]
    return [column[0].as_py() for column in casts]
