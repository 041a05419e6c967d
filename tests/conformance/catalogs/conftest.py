"""The catalogs that the suite runs on. To add one, add a function to `CATALOGS`."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from icestream.config import Settings, TableSettings
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.table import Tables, TableSpec, TopicTable

MEMORY_BYTES = 16 * 1024 * 1024


def sqlite(_request: pytest.FixtureRequest) -> dict[str, Any]:
    return {}


def memory(_request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"catalog": {"type": "memory"}}


def postgres(request: pytest.FixtureRequest) -> dict[str, Any]:
    settings: dict[str, Any] = request.getfixturevalue("postgres_server").settings()
    return settings


def rest_on_s3(request: pytest.FixtureRequest) -> dict[str, Any]:
    server, store = request.getfixturevalue("rest_catalog_server"), request.getfixturevalue("s3_server")
    return {**server.settings(), **store.settings()}


def glue_on_s3(request: pytest.FixtureRequest) -> dict[str, Any]:
    server, store = request.getfixturevalue("glue_server"), request.getfixturevalue("s3_server")
    return {**server.settings(), **store.settings()}


CATALOGS: list[Callable[[pytest.FixtureRequest], dict[str, Any]]] = [sqlite, memory, postgres, rest_on_s3, glue_on_s3]


@pytest.fixture(params=CATALOGS, ids=lambda make: str(make.__name__))
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    made: dict[str, Any] = request.param(request)
    return made


@pytest.fixture
def settings(kind: dict[str, Any], tmp_path: Path) -> Settings:
    return Settings(
        data_dir=tmp_path,
        table=TableSettings(max_snapshots=5, manifest_merge_count=3, metadata_versions=2, unused_file_grace_seconds=0),
        **kind,
    )


@pytest.fixture
def tables(settings: Settings) -> Iterator[Tables]:
    made = Tables(settings)
    yield made
    made.close()


@pytest.fixture
def other_tables(settings: Settings, tables: Tables) -> Iterator[Tables]:
    """Another process's view of the catalog; a memory catalog has one process."""
    made = tables if settings.catalog.type == "memory" else Tables(settings)
    yield made
    if made is not tables:
        made.close()


@pytest.fixture
def topic(tables: Tables) -> Iterator[TopicName]:
    """A name that no other test has used; the servers are shared."""
    made = TopicName(f"suite_{uuid4().hex}", "events")
    yield made
    found = tables.find(made)
    if found is not None and found.location.startswith("file://"):
        shutil.rmtree(found.location.removeprefix("file://"), ignore_errors=True)


@pytest.fixture
def spec(topic: TopicName) -> TableSpec:
    return TableSpec(topic, stream_id="stream-1", epoch=1, schema=STREAM_SCHEMA)


def messages(start: int, end: int) -> pa.RecordBatch:
    offsets = pa.arange(start, end)
    count = end - start
    return pa.RecordBatch.from_arrays(
        [
            offsets,
            offsets.cast(STREAM_SCHEMA.field("publish_time").type),
            pa.repeat("producer", count),
            offsets,
            pa.array([b"key-%d" % (offset % 7) for offset in range(start, end)], pa.binary()),
            pa.array([[("n", str(offset))] for offset in range(start, end)], pa.map_(pa.string(), pa.string())),
            pa.array([b"message %d" % offset for offset in range(start, end)], pa.binary()),
        ],
        schema=STREAM_SCHEMA,
    )


def append(table: TopicTable, start: int, end: int, *, epoch: int = 1) -> TopicTable:
    files = table.writer().write([messages(start, end)], max_memory_bytes=MEMORY_BYTES)
    return table.commit(files, start=start, end=end, epoch=epoch)


def offsets_in(table: TopicTable) -> list[int]:
    found: list[int] = table.iceberg.scan(selected_fields=("offset",)).to_arrow().column("offset").to_pylist()
    return sorted(found)
