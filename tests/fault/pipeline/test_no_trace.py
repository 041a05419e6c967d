"""A pass that fails leaves no trace: the table is what it was, and its files are orphans that nothing names."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from tests.fault.pipeline.harness import InlineJobs, Site

from icestream.client.transport import Connection
from icestream.table import TopicTable
from icestream.table.writer import WriteSession

Patch = pytest.MonkeyPatch


def no_commits(monkeypatch: Patch) -> None:
    """The catalog refuses every commit."""

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise CommitFailedException("not now")

    monkeypatch.setattr("pyiceberg.catalog.sql.SqlCatalog.commit_table", refuse)


def no_answers(monkeypatch: Patch) -> None:
    """The outcome of no commit is known, and none is made."""

    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise OSError("the line is dead")

    monkeypatch.setattr("pyiceberg.catalog.sql.SqlCatalog.commit_table", fail)


def no_manifests(monkeypatch: Patch) -> None:
    """The store is full when the commit's own files are to be written."""

    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("icestream.table.commit.ManifestWriters.write_list", fail)


def a_file_gets_lost(monkeypatch: Patch) -> None:
    """The writer gives back one file less than it wrote."""
    finish = WriteSession.finish
    monkeypatch.setattr(WriteSession, "finish", lambda self: finish(self)[1:])


class WithoutTheSecondChunk:
    """A reader of a Flight stream on whose way a batch is lost."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._read = 0
        self.schema = reader.schema

    def read_chunk(self) -> Any:
        self._read += 1
        if self._read == 2:
            self._reader.read_chunk()
        return self._reader.read_chunk()

    def cancel(self) -> None:
        self._reader.cancel()


def a_batch_gets_lost(monkeypatch: Patch) -> None:
    get = Connection.get
    monkeypatch.setattr(Connection, "get", lambda self, *asked: WithoutTheSecondChunk(get(self, *asked)))


def a_batch_cannot_be_written(monkeypatch: Patch) -> None:
    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise pa.ArrowInvalid("not these rows")

    monkeypatch.setattr("icestream.table.writer.DataFileWriter.write", fail)


FAILURES: dict[Callable[[Patch], None], str] = {
    no_commits: "commits in a row failed",
    no_answers: "commits in a row failed",
    no_manifests: "no space left",
    a_file_gets_lost: "messages were written",
    a_batch_gets_lost: "was to come",
    a_batch_cannot_be_written: "not these rows",
}


def state(site: Site) -> tuple[str, list[int], dict[str, str]]:
    found = site.tables.find(site.topic("events"))
    assert found is not None
    table = found.iceberg
    return table.metadata_location, [one.snapshot_id for one in table.snapshots()], dict(table.properties)


def named_files(found: TopicTable) -> Iterator[str]:
    """The data files of all snapshots."""
    for snapshot in found.iceberg.snapshots():
        for manifest in snapshot.manifests(found.iceberg.io):
            yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(found.iceberg.io))


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: str(failure.__name__))
def test_a_pass_that_fails_leaves_no_trace_in_the_table(
    site: Site, monkeypatch: Patch, failure: Callable[[Patch], None]
) -> None:
    site.publish("events")
    site.drain(site.runner())
    before = state(site)
    for _ in range(4):
        site.publish("events", 5, filler_bytes=200_000)
    runner = site.runner(InlineJobs(), pipeline={"quarantine_after": 0 if failure is a_batch_cannot_be_written else 5})
    with monkeypatch.context() as faults:
        faults.setattr("icestream.pipeline.one_pass.MAX_COMMIT_TRIES", 3)
        failure(faults)
        figures = runner.drain(threading.Event()).topics[site.topic("events")]
    assert FAILURES[failure] in str(figures.error)
    assert (figures.commits, figures.messages) == (0, 0)
    assert state(site) == before
    site.drain(site.runner())
    site.check("events")
    found = site.table_at("events", 30)
    folder = Path(found.location.removeprefix("file://")) / "data"
    on_disk = {f"file://{path}" for path in folder.rglob("*.parquet")}
    assert set(named_files(found)) <= on_disk
