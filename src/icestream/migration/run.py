"""The steps of a migration.

1. Read every file's footer: its identity, rows and columns. Nothing is published yet.
2. Find the topic and map the columns. A column that the topic does not have ends the migration here.
3. Ask the topic which rows of these files it has.
4. File by file: check it, publish what is missing (`publish`). A damaged or unfit file is reported, and the others go
   on.
5. Wait until the rows are in the table.
6. Read everything back and compare (`verify`).

A migration can be ended or killed at any point and run again: step 3 finds out how far it came.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from icestream.client import Client
from icestream.config import Settings
from icestream.migration.journal import DuplicateCheck, Journal
from icestream.migration.mapping import ColumnMap, ColumnOptions, Partitions, map_columns, partitions_of
from icestream.migration.parquet_files import Identity, ParquetSource
from icestream.migration.publish import CheckedFile, FilePublisher, OpenedFile
from icestream.migration.report import FileReport, FileState, MigrationReport
from icestream.migration.retries import with_retries
from icestream.migration.sources import FileSource, FoundFile
from icestream.migration.target import MigrationTarget, ensure, guess_signal, plain_target, telemetry_target
from icestream.migration.verify import FileToVerify, verify
from icestream.model.errors import (
    DamagedError,
    DeadlineError,
    InvalidMessageError,
    InvalidRequestError,
    ObjectNotFoundError,
)
from icestream.telemetry import Signal
from icestream.telemetry.tenants import check_dataset, check_tenant

WAITING = "waiting for the table"
_OPERATION = "migrate"
_WAIT_SECONDS = 2.0


@dataclass(frozen=True)
class MigrationRequest:
    """What to migrate into: a tenant's signal, or a topic; and how."""

    tenant: str | None = None
    dataset: str | None = None
    signal: Signal | None = None
    topic: str | None = None
    column_options: ColumnOptions = field(default_factory=ColumnOptions)
    batch_rows: int = 16_384
    dry_run: bool = False
    wait: bool = True
    again: bool = False


class ProgressListener(Protocol):
    def begin(self, what: str, total: int, unit: str) -> None:
        """Begin a step."""

    def advance(self, amount: float) -> None: ...


class NoProgress:
    def begin(self, what: str, total: int, unit: str) -> None:
        """Do nothing."""

    def advance(self, amount: float) -> None:
        """Do nothing."""


@dataclass
class MigratedFile:
    """A readable file, and what is known of it so far."""

    found: FoundFile
    report: FileReport
    identity: Identity
    schema: pa.Schema
    columns: ColumnMap | None = None
    checked: CheckedFile | None = None


class Migration:
    def __init__(
        self,
        client: Client,
        source: FileSource,
        settings: Settings,
        request: MigrationRequest,
        progress: ProgressListener | None = None,
    ) -> None:
        self._client = client
        self._source = source
        self._settings = settings
        self._request = request
        self._progress = progress or NoProgress()
        self.report = MigrationReport(source.name, "", dry_run=request.dry_run)

    def run(self) -> MigrationReport:
        """Run the steps and return the report. After an error, `report` has what was done until then."""
        started = time.monotonic()
        try:
            self._check_names()
            files = self._look()
            if files:
                self._run(files)
        finally:
            self.report.seconds = time.monotonic() - started
        return self.report

    def _run(self, files: list[MigratedFile]) -> None:
        self._check_column_options(files)
        target = self._find_target(files)
        files = self._map(files, target)
        journal = Journal(self._client, target.topic, is_plain=target.is_plain)
        if target.exists:
            journal.read()
        duplicate_check = DuplicateCheck(self._client, self._source, target, journal, again=self._request.again)
        duplicate_check.check(files)
        if self._request.dry_run or not files:
            return
        ensure(self._client, target, self._settings)
        self.report.created = not target.exists
        self._move(files, target, journal, duplicate_check)
        journal.read()
        done = [file for file in files if file.report.state is FileState.PUBLISHED]
        for file in done:
            present = journal.of(file.identity.producer)
            file.report.first_offset, file.report.last_offset = present.first_offset, present.end_offset - 1
        end = max((journal.of(file.identity.producer).end_offset for file in done), default=0)
        if self._request.wait and target.has_table and end:
            self._wait(target, end)
        self._verify(done, target, journal)
        duplicate_check.fail_concurrent_copies(done)

    # ---- 1 and 2

    def _check_names(self) -> None:
        request = self._request
        if (request.topic is None) == (request.tenant is None):
            raise InvalidRequestError("name a tenant or a topic", operation=_OPERATION)
        if request.tenant is not None:
            check_tenant(request.tenant)
        if request.dataset is not None:
            check_dataset(request.dataset)

    def _look(self) -> list[MigratedFile]:
        places = self._source.files()
        self._progress.begin("looking at files", len(places), "files")
        schemas: dict[bytes, pa.Schema] = {}
        files = []
        for found in places:
            report = FileReport(found.path, found.size)
            self.report.files.append(report)
            try:
                with ParquetSource(self._source, found) as file:
                    report.rows, report.row_groups = file.rows, file.row_groups
                    schema = schemas.setdefault(file.schema.serialize().to_pybytes(), file.schema)
                    files.append(MigratedFile(found, report, file.identity, schema))
            except (DamagedError, ObjectNotFoundError, OSError) as error:
                report.fail(FileState.DAMAGED, str(error))
            self._progress.advance(1)
        return files

    def _check_column_options(self, files: list[MigratedFile]) -> None:
        """Raise for a column that no file has: a mistyped name would do nothing, or drop another column."""
        column_options = self._request.column_options
        known = {name for file in files for name in file.schema.names}
        for file in files:
            with suppress(InvalidMessageError):  # `_map` refuses the file
                known |= partitions_of(file.found.known_as).keys()
        if unknown := sorted({*column_options.renames, *column_options.ignored} - known):
            raise InvalidRequestError(
                f"no file has a column {', '.join(map(repr, unknown))}",
                operation=_OPERATION,
                remedy=f"they have {', '.join(sorted(known))}",
            )

    def _find_target(self, files: list[MigratedFile]) -> MigrationTarget:
        request, report = self._request, self.report
        if request.topic is not None:
            target = plain_target(self._client, request.topic)
        else:
            assert request.tenant is not None
            signal = request.signal
            if signal is None:
                signal, report.guessed = self._guess(files)
            target = telemetry_target(self._client, request.tenant, request.dataset, signal, self._settings)
            report.signal = str(signal)
        report.topic = str(target.topic)
        return target

    def _guess(self, files: list[MigratedFile]) -> tuple[Signal, str]:
        """Return the signal of all files, and what it was guessed from. Raise if there are several."""
        guesses: dict[Signal, tuple[str, str]] = {}
        for file in {id(file.schema): file for file in reversed(files)}.values():
            names = [self._request.column_options.renames.get(name, name) for name in file.schema.names]
            schema = pa.schema([pa.field(name, pa.null()) for name in names])
            signal, reason = guess_signal(schema, [file.found.path, self._source.name])
            guesses[signal] = (file.found.path, reason)
        if len(guesses) > 1:
            found = ", ".join(f"{signal} ({path})" for signal, (path, _) in guesses.items())
            raise InvalidRequestError(
                f"the files are of several signals: {found}",
                operation=_OPERATION,
                remedy="name the folder of one at a time, or give --signal if all are of one",
            )
        ((signal, (_, reason)),) = guesses.items()
        return signal, reason

    def _map(self, files: list[MigratedFile], target: MigrationTarget) -> list[MigratedFile]:
        """Map the columns. Return the files whose folder names fit the topic."""
        known: dict[tuple[int, tuple[tuple[str, str | None], ...]], ColumnMap] = {}
        mapped = []
        for file in files:
            try:
                partitions = partitions_of(file.found.known_as)
                key = (id(file.schema), self._used(partitions, target))
                if key not in known:
                    known[key] = map_columns(
                        file.schema,
                        target.schema,
                        self._request.column_options,
                        partitions=partitions,
                        signal=target.signal,
                    )
            except InvalidMessageError as error:
                file.report.fail(FileState.REFUSED, str(error))
                continue
            except InvalidRequestError as error:
                error.place = file.found.path
                raise
            file.columns = known[key]
            mapped.append(file)
        for columns in known.values():
            self.report.mapping |= {column.target.name: column.origin for column in columns.columns}
            self.report.dropped += [name for name in columns.dropped if name not in self.report.dropped]
            self.report.notes += [note for note in columns.notes if note not in self.report.notes]
        return mapped

    def _used(self, partitions: Partitions, target: MigrationTarget) -> tuple[tuple[str, str | None], ...]:
        """Return the folders' columns, with the values that matter: files of many hours share one map."""
        names, renames = target.schema.names, self._request.column_options.renames
        return tuple((name, value if renames.get(name, name) in names else "") for name, value in partitions.items())

    # ---- 4

    def _move(
        self, files: list[MigratedFile], target: MigrationTarget, journal: Journal, duplicate_check: DuplicateCheck
    ) -> None:
        movable = [file for file in files if file.report.state in (FileState.NEW, FileState.BEGUN, FileState.PUBLISHED)]
        self._progress.begin("moving", sum(file.report.rows for file in movable), "rows")
        publisher = FilePublisher(self._client, target, journal, self._request.batch_rows)
        for file in movable:
            try:
                with ParquetSource(self._source, file.found) as opened:
                    self._move_one(file, opened, publisher, journal, duplicate_check)
            except (DamagedError, InvalidRequestError, ObjectNotFoundError, OSError) as error:
                state = FileState.REFUSED if isinstance(error, InvalidRequestError) else FileState.DAMAGED
                there = journal.of(file.identity.producer).rows
                half = f"; {there} of its rows are in the topic" if there else ""
                file.report.fail(state, f"{error}{half}")

    def _move_one(
        self,
        file: MigratedFile,
        opened: ParquetSource,
        publisher: FilePublisher,
        journal: Journal,
        duplicate_check: DuplicateCheck,
    ) -> None:
        if opened.identity != file.identity:
            raise InvalidRequestError(
                "the file changed during the migration", operation=_OPERATION, place=file.found.path
            )
        assert file.columns is not None
        source = OpenedFile(file.found.path, opened, file.columns)
        there = journal.of(source.producer).end_sequence
        file.checked = publisher.check(source, self._advance_half)
        file.report.checksum = file.checked.fingerprint.digest()
        self._advance_half(there)
        if not duplicate_check.check_again(file):
            return
        file.report.published = publisher.publish(source, self._advance_half)
        file.report.state = FileState.PUBLISHED

    def _advance_half(self, rows: int) -> None:
        """Advance by half a row: a row is checked, then published."""
        self._progress.advance(rows / 2)

    # ---- 5 and 6

    def _wait(self, target: MigrationTarget, end: int) -> None:
        start = with_retries(lambda: self._client.describe_topic(target.topic).committed_offset) or 0
        self._progress.begin(WAITING, max(0, end - start), "rows")
        reached = start
        while reached < end:
            found = with_retries(lambda: self._ask_committed(target, end))
            if found is not None and found > reached:
                self._progress.advance(min(found, end) - reached)
                reached = found
        self.report.committed = True

    def _ask_committed(self, target: MigrationTarget, end: int) -> int | None:
        try:
            return self._client.wait_committed(target.topic, end - 1, _WAIT_SECONDS).committed_offset
        except DeadlineError:
            return self._client.describe_topic(target.topic).committed_offset

    def _verify(self, files: list[MigratedFile], target: MigrationTarget, journal: Journal) -> None:
        wanted = []
        for file in files:
            assert file.checked is not None
            producer = file.identity.producer
            wanted.append(FileToVerify(producer, file.report.rows, journal.of(producer), file.checked))
        self._progress.begin("verifying", sum(file.report.rows for file in files), "rows")
        verify(self._client, target, wanted, committed=self.report.committed, advance=self._progress.advance)
        for file, one in zip(files, wanted, strict=True):
            file.report.verified = one.problem is None
            if one.problem is not None:
                file.report.fail(FileState.DIFFERENT, one.problem)
