"""Reads that a REST server plans."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.conformance.catalogs.conftest import append, offsets_in

from icestream.config import CatalogSettings, Settings
from icestream.model.filters import Filter
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.table import Tables, TableSpec, TopicTable
from icestream.table.planning import FilePlan
from icestream_servers import RestCatalogServer, S3Server


@pytest.fixture(params=["client", "server"])
def tables(
    request: pytest.FixtureRequest, rest_catalog_server: RestCatalogServer, s3_server: S3Server, tmp_path: Path
) -> Iterator[Tables]:
    settings = {**rest_catalog_server.settings()["catalog"], "scan_planning": request.param}
    catalog = CatalogSettings.model_validate(settings)
    made = Tables(Settings(data_dir=tmp_path, catalog=catalog, **s3_server.settings()))
    yield made
    made.close()


@pytest.fixture
def state(tables: Tables) -> TopicTable:
    made = tables.open(TableSpec(TopicName(f"suite_{uuid4().hex}", "events"), "stream-1", 1, STREAM_SCHEMA))
    for start in range(0, 50, 10):
        made = append(made, start, start + 10)
    return made.refresh()


def _read(state: TopicTable, start: int = 0, end: int | None = None, where: str | None = None) -> list[int]:
    batches = state.scan(start, end, ["offset"], where=Filter.parse(where) if where else None)
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def test_a_read_gives_the_same_rows_whoever_plans_it(tables: Tables, state: TopicTable) -> None:
    planned_by_server = tables.catalog.properties["scan-planning-mode"] == "server"
    assert tables.catalog.supports_server_side_planning() == planned_by_server
    assert offsets_in(state) == list(range(50))
    assert _read(state) == list(range(50))
    assert _read(state, 13, 37) == list(range(13, 37))


def test_a_plan_has_the_files_of_the_range_with_their_offsets(state: TopicTable) -> None:
    found = [(file.first_offset, file.last_offset, file.rows) for file in FilePlan(state, 15, 31).files()]
    assert found == [(10, 19, 10), (20, 29, 10), (30, 39, 10)]
    windows = list(FilePlan(state, window_files=2).windows())
    assert [[file.first_offset for file in window] for window in windows] == [[0, 10], [20, 30], [40]]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("sequence between 5 and 12", list(range(5, 13))),
        ("publish_time >= '1970-01-01T00:00:00.000045Z'", list(range(45, 50))),
        ("producer like 'prod%' and offset < 3", [0, 1, 2]),
        ("key = 'key-3' and attributes['n'] in ('3', '10', '11')", [3, 10]),
        ("key is null or producer <> 'producer'", []),
    ],
)
def test_filters_give_the_same_rows_whoever_plans(state: TopicTable, where: str, expected: list[int]) -> None:
    assert _read(state, where=where) == expected


def test_positions_are_found_whoever_plans(state: TopicTable) -> None:
    assert state.first_offset() == 0
    assert state.offset_at_time(23) == 23
    assert state.snapshot_id is not None
    assert state.offset_of_snapshot(state.snapshot_id) == 50
    assert state.tag("checked").offset_of_tag("checked") == 50
