from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitStateUnknownException
from requests.exceptions import RequestException
from sqlalchemy.exc import OperationalError
from tests.http_proxy import Answer, CutReply, DropReply, FaultProxy
from tests.integration.servers.tables import ROWS, s3_properties
from tests.tcp_proxy import TcpProxy

from icestream_servers import PostgresServer, RestCatalogServer, S3Server


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.url) as proxy:
        yield proxy


@pytest.fixture
def rest_proxy(rest_catalog_server: RestCatalogServer) -> Iterator[FaultProxy]:
    with FaultProxy(rest_catalog_server.url) as proxy:
        yield proxy


@pytest.fixture
def catalog(rest_proxy: FaultProxy, s3_server: S3Server, request: pytest.FixtureRequest) -> Catalog:
    properties = s3_properties(s3_server.settings()["object_store"])
    catalog = load_catalog("rest", type="rest", uri=rest_proxy.url, **properties)
    catalog.create_namespace_if_not_exists("proxied")
    catalog.create_table(f"proxied.{request.node.name}", ROWS.schema)
    return catalog


def test_signatures_hold_through_a_proxy(s3_server: S3Server, s3_proxy: FaultProxy) -> None:
    files = s3_server.file_system(endpoint=s3_proxy.url)
    path = f"{s3_server.bucket}/proxied/large"
    content = bytes(range(256)) * 48_000  # 12 MB: several parts
    with files.open_output_stream(path) as out:
        out.write(content)
    assert files.open_input_file(path).read() == content
    assert s3_proxy.exchanges()


def test_a_store_that_is_busy_for_a_moment_is_asked_again(s3_server: S3Server, s3_proxy: FaultProxy) -> None:
    files = s3_server.file_system(endpoint=s3_proxy.url)
    path = f"{s3_server.bucket}/proxied/busy"
    busy = s3_proxy.inject(Answer(503), path="proxied/busy")
    with files.open_output_stream(path) as out:
        out.write(b"at last")
    assert busy.count == 1
    assert files.open_input_file(path).read() == b"at last"


def test_an_object_that_comes_cut_is_not_taken_for_whole(s3_server: S3Server, s3_proxy: FaultProxy) -> None:
    files = s3_server.file_system(endpoint=s3_proxy.url)
    path = f"{s3_server.bucket}/proxied/cut"
    with files.open_output_stream(path) as out:
        out.write(b"x" * 100_000)
    cut = s3_proxy.inject(CutReply(after_bytes=1_000), method="GET", path="proxied/cut")
    assert files.open_input_file(path).read() == b"x" * 100_000
    assert cut.count == 1


def test_a_commit_whose_reply_is_lost_is_in_the_table(
    catalog: Catalog, rest_proxy: FaultProxy, request: pytest.FixtureRequest
) -> None:
    name = f"proxied.{request.node.name}"
    table = catalog.load_table(name)
    lost = rest_proxy.inject(DropReply(), method="POST", path="/tables/")
    with pytest.raises((CommitStateUnknownException, RequestException)):
        table.append(ROWS)
    assert lost.count == 1
    assert len(catalog.load_table(name).snapshots()) == 1


def test_a_commit_that_a_gateway_answers_for_is_in_the_table(
    catalog: Catalog, rest_proxy: FaultProxy, request: pytest.FixtureRequest
) -> None:
    name = f"proxied.{request.node.name}"
    table = catalog.load_table(name)
    rest_proxy.inject(Answer(504, after_server=True), method="POST", path="/tables/")
    with pytest.raises(CommitStateUnknownException):
        table.append(ROWS)
    assert len(catalog.load_table(name).snapshots()) == 1


def test_a_database_connection_that_is_cut_is_made_anew(postgres_server: PostgresServer, tmp_path: Path) -> None:
    with TcpProxy(f"127.0.0.1:{postgres_server.port}") as proxy:
        uri = postgres_server.settings(endpoint=proxy.address)["catalog"]["uri"]
        catalog = load_catalog("cut", type="sql", uri=uri, warehouse=str(tmp_path))
        catalog.list_namespaces()
        proxy.refuse()
        with pytest.raises(OperationalError):
            catalog.list_namespaces()
        proxy.allow()
        assert catalog.list_namespaces() == []
        catalog.close()
