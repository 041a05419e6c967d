"""An object store that is busy, slow, or cut off in the middle, while files are written and committed."""

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.fault.pipeline.conftest import MakeSite
from tests.fault.pipeline.harness import Site
from tests.http_proxy import Answer, CutReply, CutRequest, Delay, DropReply, Fault, FaultProxy

from icestream.broker_process import BrokerProcess
from icestream_servers import RestCatalogServer, S3Server

ROUNDS = 100 if os.environ.get("ICESTREAM_SOAK") else 3
FAULTS: list[Fault] = [
    Answer(503),
    Answer(503, after_server=True),
    Answer(500),
    DropReply(),
    Delay(0.8),
    CutReply(after_bytes=0),
    CutReply(after_bytes=50),
    CutRequest(after_bytes=0),
    CutRequest(after_bytes=200),
]
REQUESTS = [
    *(("PUT", file) for file in (r"\.parquet", r"\.parquet", r"-m\d+\.avro", "snap-", r"metadata\.json", "")),
    ("GET", ""),
    (None, ""),
]
TIMEOUTS = {"s3.request-timeout": "0.4", "s3.connect-timeout": "1"}


@pytest.fixture(params=["sql", "rest"])
def site(
    request: pytest.FixtureRequest,
    make_site: MakeSite,
    broker: BrokerProcess,
    s3_server: S3Server,
    s3_proxy: FaultProxy,
    namespace: str,
    tmp_path: Path,
) -> Site:
    """The store is behind the proxy; a SQL catalog's metadata files are too, a REST catalog writes its own directly."""
    catalog: dict[str, Any] = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{s3_server.bucket}/{namespace}",
    }
    if request.param == "rest":
        server: RestCatalogServer = request.getfixturevalue("rest_catalog_server")
        catalog = server.settings()["catalog"]
    sections = {"catalog": catalog | {"properties": TIMEOUTS}, **s3_server.settings(endpoint=s3_proxy.url)}
    return make_site(broker, sections)


def test_any_series_of_faults_of_the_store_leaves_each_message_once(site: Site, s3_proxy: FaultProxy) -> None:
    rng = random.Random(1)
    runner = site.runner()
    for _ in range(ROUNDS):
        for name in ("first", "second"):
            site.publish(name, rng.randint(1, 30))
        for _ in range(rng.randint(1, 3)):
            method, path = rng.choice(REQUESTS)
            s3_proxy.inject(rng.choice(FAULTS), method=method, path=path, times=rng.choice((1, 1, 4)))
        runner.drain(threading.Event())
        if rng.random() < 0.5:
            s3_proxy.clear()
    s3_proxy.clear()
    assert sum(exchange.fault is not None for exchange in s3_proxy.exchanges()) >= ROUNDS
    site.drain(site.runner())
    site.check("first", "second")


def test_a_store_that_refuses_everything_for_a_while_delays_and_loses_nothing(site: Site, s3_proxy: FaultProxy) -> None:
    runner = site.runner()
    site.publish("events")
    site.drain(runner)
    site.publish("events")
    refused = s3_proxy.inject(Answer(403), times=None)
    figures = runner.drain(threading.Event()).topics[site.topic("events")]
    assert refused.count
    assert figures.failures == 3
    assert "store" in str(figures.error)
    s3_proxy.clear()
    site.drain(site.runner())
    site.check("events")


def test_an_upload_in_parts_that_is_cut_in_the_middle_is_begun_again(site: Site, s3_proxy: FaultProxy) -> None:
    runner = site.runner(table={"row_group_bytes": 4 << 20})
    for _ in range(12):
        site.publish("large", 4, filler_bytes=2 << 20)
    cut = s3_proxy.inject(CutRequest(after_bytes=1 << 20), method="PUT", path="partNumber=1", times=6)
    answered = s3_proxy.inject(Answer(503, after_server=True), method="POST", path="uploadId", times=1)
    runner.drain(threading.Event())
    assert cut.count
    s3_proxy.clear()
    site.drain(site.runner(table={"row_group_bytes": 4 << 20}))
    site.check("large")
    assert answered.count <= 1
