"""A topic whose log cannot be read: the others go on, and its reason is there to be seen."""

import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fault.pipeline.conftest import MakeSite, environ
from tests.fault.pipeline.harness import Site, wait_for

from icestream.broker_process import BrokerProcess
from icestream.model.names import TopicName

SMALL = {"wal": {"max_file_size": 65_536}, "reader": {"poll_interval_ms": 100}}


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", environ=environ(SMALL)) as process:
        yield process


def damage(broker: BrokerProcess, topic: TopicName, segment: int) -> None:
    """Flip a bit in the middle of one of the topic's segments, while the broker is down."""
    path = sorted((broker.data_dir / "wal" / topic.namespace / topic.name).glob("*.log"))[segment]
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


def failing(broker: BrokerProcess) -> dict[str, float]:
    """The metric that alarms are set on."""
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r'icestream_topic_pipeline_failing\{topic="([^"]+)"\} ([0-9.]+)', text)
    return {topic: float(value) for topic, value in found}


def publish_segments(site: Site) -> None:
    for name in ("bad", "good"):
        for _ in range(20):
            site.publish(name, 5, filler_bytes=8_000)


def test_a_damaged_segment_stops_its_topic_alone_and_the_reason_is_told(
    make_site: MakeSite, own_broker: BrokerProcess
) -> None:
    site = make_site(own_broker)
    publish_segments(site)
    bad, good = site.topic("bad"), site.topic("good")
    assert own_broker.terminate() == 0
    damage(own_broker, bad, 1)
    own_broker.start()
    runner = site.runner()
    figures = runner.drain(threading.Event())
    assert "damage" in str(figures.topics[bad].error)
    assert figures.topics[good].error is None
    site.publish("good")
    site.drain_all_but(runner, bad)
    site.check("good")
    told = site.client.stats(bad)["pipeline"]["topics"][str(bad)]
    assert "damage" in told["error"]
    assert told["failures"] > 0
    assert failing(own_broker) == {str(bad): 1.0, str(good): 0.0}


def test_a_log_that_cannot_be_opened_is_told_too_and_when_it_is_restored_all_goes_on(
    make_site: MakeSite, own_broker: BrokerProcess, tmp_path: Path
) -> None:
    site = make_site(own_broker)
    publish_segments(site)
    bad, good = site.topic("bad"), site.topic("good")
    assert own_broker.terminate() == 0
    last = max((own_broker.data_dir / "wal" / bad.namespace / bad.name).glob("*.log"))
    aside = last.rename(tmp_path / last.name)
    own_broker.start()
    with site.running(site.runner()):
        site.wait_until_in_tables("good")
        site.publish("good")
        site.wait_until_in_tables("good")
        wait_for("the figures", lambda: failing(own_broker) == {str(bad): 1.0, str(good): 0.0})
        assert site.client.stats(bad)["pipeline"]["topics"][str(bad)]["error"]
        assert own_broker.terminate() == 0
        aside.rename(last)
        own_broker.start()
        site.wait_until_in_tables("bad")
        wait_for("the figures", lambda: failing(own_broker)[str(bad)] == 0.0)
    site.check("bad", "good")
