"""Maintenance where catalog and files are on servers: all steps, with the options that the settings make."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from icestream.config import Settings
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.pipeline.maintenance.run import Maintenance
from icestream.storage.verify import verify_topic
from icestream.table import Tables, TableSpec, TopicTable
from icestream_servers.spark_process import SparkProcess

Sections = dict[str, Any]


def postgres(request: pytest.FixtureRequest) -> Sections:
    sections: Sections = request.getfixturevalue("postgres_server").settings()
    return sections


def rest_on_s3(request: pytest.FixtureRequest) -> Sections:
    server, store = request.getfixturevalue("rest_catalog_server"), request.getfixturevalue("s3_server")
    return {**server.settings(), **store.settings()}


def glue_on_s3(request: pytest.FixtureRequest) -> Sections:
    server, store = request.getfixturevalue("glue_server"), request.getfixturevalue("s3_server")
    return {**server.settings(), **store.settings()}


SERVERS: list[Callable[[pytest.FixtureRequest], Sections]] = [postgres, rest_on_s3, glue_on_s3]


@pytest.fixture(params=SERVERS, ids=lambda make: str(make.__name__))
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    sections = request.param(request)
    name = {"name": f"c{uuid4().hex[:12]}"}
    given = {"data_dir": tmp_path, "maintenance": {"min_snapshots": 1, "min_manifests": 2}, **sections}
    return Settings.model_validate(given | {"catalog": _dump(sections.get("catalog", {})) | name})


@pytest.fixture
def tables(settings: Settings) -> Iterator[Tables]:
    made = Tables(settings)
    yield made
    made.close()


def test_all_steps_run_and_the_table_stays_sound(
    settings: Settings, tables: Tables, spark_process: SparkProcess
) -> None:
    topic = TopicName(f"suite_{uuid4().hex}", "events")
    table = tables.open(TableSpec(topic, "stream-1", 1, STREAM_SCHEMA))
    for number in range(5):
        table = _append(table, number * 10, number * 10 + 10)
    keeper = Maintenance(
        settings, tables, spark_process.sql(settings), now=lambda: datetime.now(UTC) + timedelta(hours=25)
    )
    (report,) = keeper.run([topic])
    assert report.errors == []
    assert report.after is not None
    assert (report.after.rows, report.after.files, report.after.snapshots, report.after.manifests) == (50, 1, 1, 1)
    verified = verify_topic(topic, lambda _topic: None, tables)
    assert verified.is_sound, verified.findings
    assert verified.rows == 50


def _append(table: TopicTable, start: int, end: int) -> TopicTable:
    offsets = pa.arange(start, end)
    rows = pa.RecordBatch.from_arrays(
        [
            offsets,
            offsets.cast(STREAM_SCHEMA.field("publish_time").type),
            pa.repeat("producer", end - start),
            offsets,
            *(pa.nulls(end - start, STREAM_SCHEMA.field(name).type) for name in ("key", "attributes")),
            pa.array([b"message %d" % offset for offset in range(start, end)], pa.binary()),
        ],
        schema=STREAM_SCHEMA,
    )
    files = table.writer().write([rows], max_memory_bytes=1 << 24)
    return table.commit(files, start=start, end=end, epoch=1)


def _dump(section: Any) -> dict[str, Any]:
    found: dict[str, Any] = section if isinstance(section, dict) else section.model_dump(exclude_unset=True)
    return found
