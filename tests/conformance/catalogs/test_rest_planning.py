"""Reads that a REST server plans."""

from pathlib import Path
from uuid import uuid4

import pytest
from tests.conformance.catalogs.conftest import append, offsets_in

from icestream.config import CatalogSettings, Settings
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.table import Tables, TableSpec
from icestream.testing.servers import RestCatalogServer, S3Server


@pytest.mark.parametrize("mode", ["client", "server"])
def test_a_read_gives_the_same_rows_whoever_plans_it(
    rest_catalog_server: RestCatalogServer, s3_server: S3Server, tmp_path: Path, mode: str
) -> None:
    catalog = CatalogSettings.model_validate({**rest_catalog_server.settings()["catalog"], "scan_planning": mode})
    tables = Tables(Settings(data_dir=tmp_path, catalog=catalog, **s3_server.settings()))
    state = tables.open(TableSpec(TopicName(f"suite_{uuid4().hex}", "events"), "stream-1", 1, STREAM_SCHEMA))
    state = append(append(state, 0, 10), 10, 20)
    if mode == "client" or tables.catalog.supports_server_side_planning():
        assert tables.catalog.supports_server_side_planning() == (mode == "server")
    assert offsets_in(state.refresh()) == list(range(20))
    tables.close()
