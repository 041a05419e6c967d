"""A catalog that is away, silent, or cut off now and then: publishing goes on as ever, and commits when it is back."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fault.pipeline.conftest import MakeSite, environ
from tests.fault.pipeline.harness import Site
from tests.http_proxy import FaultProxy, Hold
from tests.tcp_proxy import TcpProxy

from icestream.broker_process import BrokerProcess
from icestream_servers import PostgresServer, RestCatalogServer, S3Server

CUTS = 200 if os.environ.get("ICESTREAM_SOAK") else 12


def publish_through(site: Site, count: int = 30) -> None:
    """All messages are acknowledged when this returns; an outage ends only afterwards, so that none waits for it."""
    before = site.oracle.end(site.topic("events"))
    for _ in range(count):
        site.publish("events", 5)
    assert site.oracle.end(site.topic("events")) == before + 5 * count


@pytest.fixture
def rest_broker(tmp_path: Path, rest_catalog_server: RestCatalogServer, s3_server: S3Server) -> Iterator[BrokerProcess]:
    """A broker that follows the tables of the REST catalog itself."""
    sections = {**rest_catalog_server.settings(), **s3_server.settings(), "reader": {"poll_interval_ms": 100}}
    with BrokerProcess(tmp_path / "data", environ=environ(sections)) as process:
        yield process


def test_publishing_goes_on_while_the_catalogs_server_is_dead_and_commits_when_it_lives_again(
    make_site: MakeSite, rest_broker: BrokerProcess, rest_catalog_server: RestCatalogServer, s3_server: S3Server
) -> None:
    site = make_site(rest_broker, {**rest_catalog_server.settings(), **s3_server.settings()})
    with site.running(site.runner()):
        site.publish("events")
        site.client.wait_committed(site.topic("events"), 9, 60)
        rest_catalog_server.kill()
        try:
            publish_through(site)
            stats = site.client.stats(site.topic("events"))["topics"][0]
            assert stats["committed_offset"] == 10
        finally:
            rest_catalog_server.start()
        publish_through(site)
        site.client.wait_committed(site.topic("events"), site.oracle.end(site.topic("events")) - 1, 60)
    site.check("events")


def test_a_catalog_that_takes_requests_and_never_answers_is_given_up_and_asked_again(
    make_site: MakeSite,
    broker: BrokerProcess,
    rest_catalog_server: RestCatalogServer,
    rest_proxy: FaultProxy,
    s3_server: S3Server,
) -> None:
    sections = {**rest_catalog_server.settings(endpoint=rest_proxy.url), **s3_server.settings()}
    sections["catalog"] |= {"timeout_seconds": 1}
    site = make_site(broker, sections)
    site.publish("events")
    with site.running(site.runner()):
        site.wait_until_in_tables("events")
        hold = Hold()
        rest_proxy.inject(hold, method="POST", path="/tables/")
        site.publish("events")
        assert hold.reached.wait(60)
        site.wait_until_in_tables("events")  # by another request; this one is still under way
        hold.release()
        site.publish("events")
        site.wait_until_in_tables("events")
    site.check("events")


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[TcpProxy]:
    with TcpProxy(f"127.0.0.1:{postgres_server.port}") as proxy:
        yield proxy


@pytest.fixture
def sql_site(make_site: MakeSite, broker: BrokerProcess, postgres_server: PostgresServer, database: TcpProxy) -> Site:
    return make_site(broker, postgres_server.settings(endpoint=database.address))


def test_publishing_goes_on_while_the_database_is_away_and_commits_when_it_is_back(
    sql_site: Site, database: TcpProxy
) -> None:
    with sql_site.running(sql_site.runner()):
        sql_site.publish("events")
        sql_site.wait_until_in_tables("events")
        database.refuse()
        publish_through(sql_site)
        assert sql_site.committed("events") == 0, "it cannot be asked"
        database.allow()
        sql_site.wait_until_in_tables("events")
    sql_site.check("events")


def test_a_database_whose_connections_are_cut_at_any_moment_gets_each_message_once(
    sql_site: Site, database: TcpProxy
) -> None:
    rng = random.Random(1)
    with sql_site.running(sql_site.runner(), sql_site.runner()), sql_site.publishing("first", "second"):
        for _ in range(CUTS):
            sql_site.oracle.wait_for_acks(rng.randint(1, 300))
            database.cut()
    sql_site.drain(sql_site.runner())
    sql_site.check("first", "second")
