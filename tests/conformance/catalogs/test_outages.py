"""An unreachable catalog is an error within its time-out, and is used again when it is back."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.conformance.catalogs.conftest import MEMORY_BYTES, append, messages, offsets_in

from icestream.config import Settings
from icestream.model.errors import CatalogUnavailableError, CommitConflictError, CommitUnknownError
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.table import Tables, TableSpec, TopicTable
from icestream_servers import ServerProcess


def _settings(folder: Path, parts: dict[str, Any]) -> Settings:
    catalog = {**parts.get("catalog", {}), "timeout_seconds": 1}
    return Settings.model_validate({"data_dir": folder, **parts, "catalog": catalog})


def _open(tables: Tables) -> TopicTable:
    return tables.open(TableSpec(TopicName(f"suite_{uuid4().hex}", "events"), "stream-1", 1, STREAM_SCHEMA))


@pytest.fixture
def hung(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    server: ServerProcess = request.getfixturevalue("rest_catalog_server")
    yield server
    server.resume()


def test_a_rest_server_that_hangs_ends_the_wait(request: pytest.FixtureRequest, hung: Any, tmp_path: Path) -> None:
    store = request.getfixturevalue("s3_server")
    tables = Tables(_settings(tmp_path, {**hung.settings(), **store.settings()}))
    state = append(_open(tables), 0, 3)
    files = state.writer().write([messages(3, 5)], max_memory_bytes=MEMORY_BYTES)
    hung.pause()
    with pytest.raises(CommitUnknownError):
        state.commit(files, start=3, end=5, epoch=1)
    with pytest.raises(CatalogUnavailableError):
        tables.find(state.name)
    hung.resume()
    _finish(state, files)
    tables.close()


def test_a_postgres_that_was_restarted_is_used_again(postgres_server: Any, tmp_path: Path) -> None:
    tables = Tables(_settings(tmp_path, postgres_server.settings()))
    state = append(_open(tables), 0, 3)
    files = state.writer().write([messages(3, 5)], max_memory_bytes=MEMORY_BYTES)
    postgres_server.stop()
    with pytest.raises(CommitUnknownError):
        state.commit(files, start=3, end=5, epoch=1)
    with pytest.raises(CatalogUnavailableError):
        state.refresh()
    postgres_server.start()
    _finish(state, files)
    tables.close()


def test_a_database_that_somebody_locks_is_waited_for_and_no_longer(tmp_path: Path) -> None:
    tables = Tables(_settings(tmp_path, {}))
    state = append(_open(tables), 0, 3)
    files = state.writer().write([messages(3, 5)], max_memory_bytes=MEMORY_BYTES)
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CommitUnknownError, match="locked"):
            state.commit(files, start=3, end=5, epoch=1)
        with pytest.raises(CatalogUnavailableError, match="locked"):
            tables.find(state.name)
        other.execute("ROLLBACK")
    _finish(state, files)
    tables.close()


def _finish(state: TopicTable, files: list[Any]) -> None:
    """What whoever commits does after an unknown outcome; the lost commit may still come through meanwhile."""
    state = state.refresh()
    while state.ledger.committed_offset == 3:
        try:
            state = state.commit(files, start=3, end=5, epoch=1)
        except CommitConflictError:
            state = state.refresh()
    assert offsets_in(state.refresh()) == list(range(5))
