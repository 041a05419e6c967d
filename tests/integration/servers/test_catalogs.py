from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from tests.integration.servers.tables import round_trip, s3_properties

from icestream.config import Settings
from icestream_servers import GlueServer, PostgresServer, RestCatalogServer, S3Server


def test_a_rest_catalog_keeps_tables_on_s3(rest_catalog_server: RestCatalogServer, s3_server: S3Server) -> None:
    properties = s3_properties(s3_server.settings()["object_store"])
    catalog = load_catalog("rest", type="rest", uri=rest_catalog_server.url, **properties)
    round_trip(catalog, "rest_smoke")
    assert catalog.load_table("rest_smoke.events").location().startswith(f"s3://{s3_server.bucket}/")


def test_a_rest_catalog_listens_on_the_loopback_interface_alone(rest_catalog_server: RestCatalogServer) -> None:
    port = f":{rest_catalog_server.port:04X}"
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table.splitlines()[1:]]
    listening = {local for _, local, _, state, *_ in lines if state == "0A" and local.endswith(port)}
    assert listening in ({f"0000000000000000FFFF00000100007F{port}"}, {f"0100007F{port}"})


def test_a_rest_catalog_knows_its_tables_after_a_kill(
    tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server
) -> None:
    properties = s3_properties(s3_server.settings()["object_store"])
    with RestCatalogServer(tmp_path_factory.mktemp("killed"), warehouse=s3_server) as server:
        round_trip(load_catalog("rest", type="rest", uri=server.url, **properties), "killed_smoke")
        server.kill()
        server.start()
        catalog = load_catalog("rest", type="rest", uri=server.url, **properties)
        assert len(catalog.load_table("killed_smoke.events").snapshots()) == 2


def test_a_glue_catalog_keeps_tables_on_s3(glue_server: GlueServer, s3_server: S3Server) -> None:
    properties = glue_server.settings()["catalog"]["properties"]
    properties |= s3_properties(s3_server.settings()["object_store"])
    catalog = load_catalog("glue", type="glue", warehouse=f"s3://{s3_server.bucket}/glue", **properties)
    round_trip(catalog, "glue_smoke")


def test_a_sql_catalog_is_kept_in_postgresql(postgres_server: PostgresServer, tmp_path: Path) -> None:
    catalog = load_catalog("sql", type="sql", uri=postgres_server.uri, warehouse=str(tmp_path))
    round_trip(catalog, "postgres_smoke")
    catalog.close()


def test_postgresql_knows_its_tables_after_a_kill(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    with PostgresServer(tmp_path_factory.mktemp("killed")) as server:
        catalog = load_catalog("sql", type="sql", uri=server.uri, warehouse=str(tmp_path))
        round_trip(catalog, "killed_smoke")
        catalog.close()
        server.kill()
        server.start()
        again = load_catalog("sql", type="sql", uri=server.uri, warehouse=str(tmp_path))
        assert len(again.load_table("killed_smoke.events").snapshots()) == 2
        again.close()


def test_each_server_names_settings_that_load(
    s3_server: S3Server,
    rest_catalog_server: RestCatalogServer,
    glue_server: GlueServer,
    postgres_server: PostgresServer,
) -> None:
    for catalog in (rest_catalog_server, glue_server, postgres_server):
        settings = Settings(**s3_server.settings(), **catalog.settings())
        assert settings.object_store.endpoint == s3_server.url
        assert settings.catalog.type == catalog.settings()["catalog"]["type"]
