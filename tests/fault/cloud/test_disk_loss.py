"""A broker is killed while it publishes and uploads, and its disk is gone: what was acknowledged is there, or lost."""

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
from tests.integration.cloud.brokers import Site

from icestream.client import Producer
from icestream.model.errors import IcestreamError
from icestream.model.names import TopicName
from icestream_servers import S3Server

TOPIC = "default/events"
PATIENCE = 120.0


@pytest.fixture
def site(tmp_path: Path, s3_server: S3Server) -> Iterator[Site]:
    cloud = s3_server.cloud_settings()["cloud"]
    made = Site(tmp_path, cloud={**cloud, "root": f"{cloud['root']}/{tmp_path.name}"}, interval_seconds=1)
    made.broker.start()
    yield made
    made.close()


class Publishing(threading.Thread):
    """Publishes until it is told to stop, and remembers what was acknowledged under which offset."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[int, bytes] = {}
        self.sent: set[bytes] = set()
        self._producer = producer
        self._stopping = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            payload = b"message %d" % number
            number += 1
            self.sent.add(payload)
            try:
                offset = self._producer.send(payload).result(PATIENCE)
            except IcestreamError:
                return
            self.acknowledged[offset] = payload

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def wait_for_uploads(site: Site, publishing: Publishing, count: int) -> None:
    """Return when the cloud has so many messages, and the log some more."""
    deadline = monotonic() + PATIENCE
    with site.client() as client:
        while (uploaded := client.describe_topic(TOPIC).uploaded_offset or 0) < count:
            assert monotonic() < deadline
            sleep(0.02)
    while len(publishing.acknowledged) <= uploaded:
        assert monotonic() < deadline
        sleep(0.002)


@pytest.mark.parametrize("keep_metadata", [True, False])
def test_a_lost_disk_loses_no_message_that_was_uploaded(site: Site, *, keep_metadata: bool) -> None:
    chance = random.Random(f"disk loss {keep_metadata}")
    with site.client() as client:
        client.create_topic(TOPIC)
        producer = client.producer(TOPIC, name="steady", retry_timeout=PATIENCE)
        publishing = Publishing(producer)
        publishing.start()
        wait_for_uploads(site, publishing, chance.randint(50, 300))
        site.drain()
        wait_for_uploads(site, publishing, len(publishing.acknowledged) + chance.randint(1, 50))
        stopper = threading.Thread(target=publishing.stop)  # its last message is on its way when the broker dies
        site.broker.kill()
        stopper.start()
        site.lose_disk(keep_metadata=keep_metadata)
        site.broker.start()
        report = json.loads(site.command("topic", "recover", TOPIC, "--json"))["topics"][0]
        producer.close()
        stopper.join()

        lost = range(report["lost_first"], report["lost_end"])
        kept = dict(zip(*(client.read(TOPIC)[name].to_pylist() for name in ("offset", "payload")), strict=True))
        before = {offset: payload for offset, payload in kept.items() if offset < lost.start}
        assert before.keys() == set(range(report["cloud_end"]))
        assert set(kept.values()) <= publishing.sent
        for offset, payload in publishing.acknowledged.items():
            assert kept.get(offset) == payload or (offset in lost and offset not in kept), offset
        assert all(offset not in lost for offset in kept)

        with client.producer(TOPIC, name="steady") as again:
            offset = again.send(b"after").result(PATIENCE)
        assert offset >= report["next_offset"]
        site.drain()
        rows = site.rows(TOPIC)
        assert rows.column("payload").to_pylist() == [*(kept[at] for at in sorted(kept)), b"after"]
        assert site.table(TOPIC).ledger.committed_offset == offset + 1
    site.command("verify", TOPIC, "--data", str(site.data))
    assert site.tables.find(TopicName.parse(TOPIC)) is not None


def test_a_disk_can_be_lost_again_and_again(site: Site) -> None:
    chance = random.Random("again and again")
    acknowledged: dict[int, bytes] = {}
    gone: list[range] = []
    for life in range(3):
        for number in range(chance.randint(1, 4)):
            count, flush = chance.randint(1, 20), chance.random() < 0.7
            payloads = [b"life %d.%d.%d" % (life, number, place) for place in range(count)]
            with site.client() as client, client.producer(TOPIC) as producer:
                offsets = [producer.send(payload).result(PATIENCE) for payload in payloads]
                assert not acknowledged.keys() & set(offsets)
                acknowledged |= dict(zip(offsets, payloads, strict=True))
                if flush:
                    client.flush_topic(TOPIC)
        site.broker.kill()
        site.lose_disk(keep_metadata=chance.random() < 0.5)
        site.broker.start()
        with site.client() as client:
            report = client.recover_topic(TOPIC)
            assert report["epoch"] == life + 2
            if report["lost_first"] is not None:
                gone.append(range(report["lost_first"], report["lost_end"]))
            kept = dict(zip(*(client.read(TOPIC)[name].to_pylist() for name in ("offset", "payload")), strict=True))
        for offset, payload in acknowledged.items():
            assert kept.get(offset) == payload or any(offset in lost for lost in gone), offset
        assert kept.items() <= acknowledged.items()
    site.drain()
    assert site.rows(TOPIC).column("payload").to_pylist() == [kept[offset] for offset in sorted(kept)]
    site.command("verify", TOPIC, "--data", str(site.data))
