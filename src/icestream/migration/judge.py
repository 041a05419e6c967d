"""What is to be done with each file, from what the topic has of it and of files like it.

A file whose rows may be in the topic under another name is refused rather than published a second time: only its owner
knows whether they are wanted twice. `again` is how the owner says so.

Another run may bring in a copy meanwhile. So a file is judged once more before its first row is sent, when others have
published much, and once more in the end: where two runs sent copies at the same moment, the later one to end says so.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from icestream.client import Client
from icestream.migration.journal import Journal
from icestream.migration.mapping import envelope_of
from icestream.migration.parquet_files import Identity, ParquetSource
from icestream.migration.report import FileReport, State
from icestream.migration.sources import Found, Source
from icestream.migration.target import Target
from icestream.model.errors import OffsetOutOfRangeError
from icestream.model.messages import ENVELOPE, MESSAGE_SCHEMA


class Judged(Protocol):
    """What is looked at of a file."""

    found: Found
    report: FileReport
    identity: Identity
    schema: pa.Schema


class Judge:
    def __init__(self, client: Client, source: Source, target: Target, journal: Journal, *, again: bool) -> None:
        self._client = client
        self._source = source
        self._target = target
        self._journal = journal
        self._again = again
        self._own_paths: set[str] = set()
        self._take_in()

    def _take_in(self) -> None:
        """What the journal has by now."""
        self._contents: dict[str, set[str]] = defaultdict(set)
        self._paths: dict[str, set[str]] = defaultdict(set)
        for producer in self._journal.producers():
            if (identity := Identity.parse(producer)) is not None:
                self._contents[identity.path].add(identity.content)
                self._paths[identity.content].add(identity.path)

    def judge(self, files: Sequence[Judged]) -> None:
        self._own_paths = {file.identity.path for file in files}
        for file in files:
            self._judge(file)

    def judge_again(self, file: Judged) -> bool:
        """Right before its rows are sent: whether they still may be."""
        if self._journal.refresh():
            self._take_in()
            if not self._journal.of(file.identity.producer).rows:
                self._refuse_others(file)
        return file.report.state is not State.REFUSED

    def find_doubles(self, files: Sequence[Judged]) -> None:
        """Of files whose rows this run has sent: those that another run sent under another name at the same time."""
        self._take_in()
        for file in files:
            if file.report.published and not self._again and self._paths[file.identity.content] - self._own_paths:
                file.report.fail(
                    State.DIFFERENT,
                    "another migration brought the same content in from another path at the same time: "
                    "the topic has its rows twice",
                )

    def _judge(self, file: Judged) -> None:
        report, identity = file.report, file.identity
        present = self._journal.of(identity.producer)
        if not report.rows:
            report.state = State.EMPTY
        elif present.rows:
            report.state = State.PUBLISHED if present.end_sequence == report.rows else State.BEGUN
            if not present.is_whole or present.end_sequence > report.rows:
                report.fail(
                    State.DIFFERENT,
                    f"the topic has {present.rows} rows of it, numbered {present.first_sequence} to "
                    f"{present.end_sequence - 1}; `icestream verify` tells whether the log has lost some",
                )
        elif self._is_of_topic(file):
            report.fail(State.REFUSED, "its rows are in this topic, under the offsets that the file names")
        else:
            self._refuse_others(file)

    def _refuse_others(self, file: Judged) -> None:
        """What the topic has of the same path, or of the same content, must not have come from elsewhere."""
        report, identity = file.report, file.identity
        if self._again:
            return
        if self._contents[identity.path]:
            report.fail(
                State.REFUSED,
                "another version of this file was migrated before; --again brings this one in beside it",
            )
        elif self._paths[identity.content] - self._own_paths:
            report.fail(
                State.REFUSED, "the same content was migrated from another path; --again brings it in once more"
            )

    def _is_of_topic(self, file: Judged) -> bool:
        """Whether the file was written from this very topic: its first row stands where the file says it stood."""
        columns = envelope_of(file.schema)
        if columns is None or not self._target.exists:
            return False
        with ParquetSource(self._source, file.found) as opened:
            first = opened.first_row(columns)
        if first is None or first.column(0)[0].as_py() is None:
            return False
        offset = first.column(0)[0].as_py()
        prefix = "" if self._target.schema.equals(MESSAGE_SCHEMA) else "_"
        names = [f"{prefix}{part.name}" for part in ENVELOPE]
        try:
            found = self._client.read(self._target.topic, offset, offset + 1, columns=names)
        except OffsetOutOfRangeError:
            return False
        return bool(found.num_rows) and _values(found) == _values(pa.Table.from_batches([first]))


def _values(rows: pa.Table) -> list[Any]:
    casts = [column.cast(part.type) for column, part in zip(rows.columns, ENVELOPE, strict=True)]
    return [column[0].as_py() for column in casts]
