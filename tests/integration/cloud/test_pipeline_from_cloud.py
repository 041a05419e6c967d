"""The pipeline writes tables from cloud objects where the broker cannot serve the messages."""

import threading
from collections.abc import Sequence
from time import monotonic, sleep

import pyarrow as pa
import pytest
from tests.integration.cloud.brokers import Site
from tests.topics import InlineJobs

from icestream.model.errors import UnavailableError
from icestream.model.names import TopicName
from icestream.pipeline.spark.session import Spark
from icestream.pipeline.tasks import FromCloud, Written, pack_parcel

PATIENCE = 60.0
TOPIC = "default/events"
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def payloads(first: int, count: int) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


def check(site: Site, count: int) -> None:
    """The table has each of the first messages once."""
    rows = site.rows(TOPIC)
    assert rows.column("offset").to_pylist() == list(range(count))
    assert rows.column("payload").to_pylist() == payloads(0, count)
    assert site.table(TOPIC).ledger.committed_offset == count


@pytest.mark.parametrize("keep_metadata", [True, False])
def test_what_a_dead_broker_uploaded_is_written_and_it_goes_on_behind_that(site: Site, *, keep_metadata: bool) -> None:
    own = pa.schema([pa.field("a", pa.int64())])
    wider = pa.schema([*own, pa.field("b", pa.string())])
    with site.client() as client:
        client.create_topic("default/own", own, sort_by=["a"])
        client.create_topic("default/kept", storage="log")
    for number in range(3):
        site.publish(TOPIC, payloads(number * 10, 10), flush=True)
    site.publish("default/own", pa.record_batch({"a": [1, 2]}, schema=own), flush=True)
    with site.client() as client:
        client.update_topic("default/own", schema=wider)
    site.publish("default/own", pa.record_batch({"a": [3], "b": ["x"]}, schema=wider), flush=True)
    site.publish("default/kept", [b"no table"], flush=True)
    site.publish(TOPIC, payloads(30, 5))
    site.broker.kill()
    metadata = site.data / "metadata.db"
    if not keep_metadata:
        metadata.rename(site.path / "away.db")

    assert site.drain().messages == 33
    check(site, 30)
    assert site.rows("default/own").select(["a", "b"]).to_pylist() == [
        {"a": 1, "b": None},
        {"a": 2, "b": None},
        {"a": 3, "b": "x"},
    ]
    assert site.tables.find(TopicName("default", "kept")) is None
    assert site.drain().messages == 0

    if not keep_metadata:
        (site.path / "away.db").rename(metadata)
    site.broker.start()
    site.publish(TOPIC, payloads(35, 5))
    assert site.drain().messages == 10
    check(site, 40)


class KillingJobs(InlineJobs):
    """The broker dies at the first job, before it or behind it."""

    def __init__(self, site: Site, *, before: bool) -> None:
        super().__init__()
        self._site = site
        self._before = before

    def run(self, parcels: Sequence[bytes]) -> list[Written]:
        if self._before and self._site.broker.is_running:
            self._site.broker.kill()
        written = super().run(parcels)
        if self._site.broker.is_running:
            self._site.broker.kill()
        return written


@pytest.mark.parametrize("broker_timeout_ms", [0, 200])
def test_a_broker_that_dies_while_all_is_written_is_stood_in_for(site: Site, broker_timeout_ms: int) -> None:
    site.publish(TOPIC, payloads(0, 10), flush=True)
    site.publish(TOPIC, payloads(10, 10), flush=True)
    site.publish(TOPIC, payloads(20, 5))
    patience = {"broker_timeout_ms": broker_timeout_ms}
    with site.runner(KillingJobs(site, before=True), pipeline=patience) as runner:
        figures = runner.drain(threading.Event())
    (found,) = figures.topics.values()
    assert found.messages == 20
    assert "the broker is unreachable" in (found.error or "")
    check(site, 20)


def test_what_was_written_before_the_broker_died_is_counted(site: Site) -> None:
    site.publish(TOPIC, payloads(0, 25))
    assert site.drain(KillingJobs(site, before=False), pipeline={"broker_timeout_ms": 200}).messages == 25
    check(site, 25)


def test_without_an_object_store_a_dead_broker_is_an_error(site: Site) -> None:
    site.publish(TOPIC, payloads(0, 1), flush=True)
    site.broker.kill()
    with site.runner(cloud={"backend": None}, uploader={"enabled": False}) as runner, pytest.raises(UnavailableError):
        runner.drain(threading.Event())


def test_spark_reads_objects_in_pieces(site: Site, spark: Spark) -> None:
    filler = "x" * 200
    for number in range(3):
        first = number * 2_000
        site.publish(TOPIC, [b"%d %s" % (first + place, filler.encode()) for place in range(2_000)], flush=True)
    site.broker.kill()
    figures = site.drain(spark, pipeline={"max_task_bytes": 64 * 1024, "max_pass_bytes": 2 * 1024 * 1024})
    assert figures.messages == 6_000
    rows = site.rows(TOPIC)
    assert rows.column("offset").to_pylist() == list(range(6_000))
    assert rows.column("payload").to_pylist() == [b"%d %s" % (number, filler.encode()) for number in range(6_000)]


@pytest.mark.parametrize("keep_metadata", [True, False])
def test_what_lies_before_a_recovered_log_is_written_too(site: Site, *, keep_metadata: bool) -> None:
    site.publish(TOPIC, payloads(0, 10), flush=True)
    assert site.drain().messages == 10
    site.publish(TOPIC, payloads(10, 10), flush=True)
    site.publish(TOPIC, payloads(20, 10), flush=True)
    site.publish(TOPIC, payloads(30, 3))
    site.broker.kill()
    site.lose_disk(keep_metadata=keep_metadata)
    site.broker.start()
    with site.client() as client:
        report = client.recover_topic(TOPIC)
    assert (report["committed_offset"], report["cloud_end"], report["lost_first"]) == (10, 30, 30)
    site.publish(TOPIC, [b"new"])
    figures = site.drain()
    assert (figures.messages, figures.topics[TopicName.parse(TOPIC)].lost) == (21, report["lost_end"] - 30)
    rows = site.rows(TOPIC)
    assert rows.column("offset").to_pylist() == [*range(30), report["next_offset"]]
    assert rows.column("payload").to_pylist() == [*payloads(0, 30), b"new"]


def test_a_pipeline_goes_over_to_the_cloud_and_comes_back(site: Site) -> None:
    site.publish(TOPIC, payloads(0, 10), flush=True)
    site.broker.kill()
    stopping = threading.Event()

    def reached(count: int) -> None:
        deadline = monotonic() + PATIENCE
        while (table := site.tables.find(TopicName.parse(TOPIC))) is None or table.ledger.committed_offset < count:
            assert monotonic() < deadline
            sleep(0.05)

    quick = {"flush_interval_ms": 100}
    with site.runner(InlineJobs(), pipeline={"broker_timeout_ms": 200}, writer=quick) as runner:
        thread = threading.Thread(target=runner.run, args=(stopping,))
        thread.start()
        try:
            reached(10)
            site.broker.start()
            site.publish(TOPIC, payloads(10, 10))
            reached(20)
        finally:
            stopping.set()
            thread.join()
    check(site, 20)


def test_credentials_are_shown_nowhere(site: Site) -> None:
    settings = site.settings(
        cloud={"backend": "s3", "root": "s3://bucket", "access_key": "AKIA-TOLD-NOBODY", "secret_key": "told-nobody"}
    )
    fetch = FromCloud(settings.cloud, "/prefix", settings.reader, (), {})
    assert "told-nobody" not in repr(fetch).lower()
    assert b"told-nobody" in pack_parcel([fetch])  # type: ignore[list-item]  # a task gets them nevertheless
