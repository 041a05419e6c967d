"""A broker without a pipeline of its own, and sites on it; see `harness`."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from tests.fault.pipeline.harness import Sections, Site
from tests.http_proxy import FaultProxy

from icestream.broker_process import BrokerProcess
from icestream_servers import RestCatalogServer, S3Server

MakeSite = Callable[..., Site]


def environ(sections: Sections) -> dict[str, str]:
    """Settings as a broker's environment."""
    return {
        f"ICESTREAM_{section}__{name}".upper(): str(value).lower() if isinstance(value, bool) else str(value)
        for section, values in sections.items()
        for name, value in values.items()
    }


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Topics of tests are apart by their namespace."""
    settings = environ({"reader": {"poll_interval_ms": 200}})
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", environ=settings) as process:
        yield process
        assert process.terminate() == 0, process.log()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """Of this test alone, also on servers that other runs have used."""
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    return f"{name[:80]}_{uuid4().hex[:8]}"


@pytest.fixture
def make_site(namespace: str) -> Iterator[MakeSite]:
    """Sites that are closed after the test."""
    made: list[Site] = []

    def make(broker: BrokerProcess, sections: Sections | None = None) -> Site:
        made.append(Site(broker.flight, broker.data_dir, namespace, sections))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def site(make_site: MakeSite, broker: BrokerProcess) -> Site:
    """With the embedded catalog, and tables in a directory."""
    return make_site(broker)


@pytest.fixture
def rest_proxy(rest_catalog_server: RestCatalogServer) -> Iterator[FaultProxy]:
    with FaultProxy(rest_catalog_server.url) as proxy:
        yield proxy


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.url) as proxy:
        yield proxy


@pytest.fixture
def rest_site(
    make_site: MakeSite,
    broker: BrokerProcess,
    rest_catalog_server: RestCatalogServer,
    rest_proxy: FaultProxy,
    s3_server: S3Server,
) -> Site:
    """With a REST catalog behind a proxy, and tables on S3."""
    return make_site(broker, {**rest_catalog_server.settings(endpoint=rest_proxy.url), **s3_server.settings()})
