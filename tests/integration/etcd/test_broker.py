"""A broker whose metadata is in etcd."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.servers import require

from icestream import Client
from icestream.broker_process import BrokerProcess
from icestream.metadata import keys
from icestream.metadata.etcd.store import EtcdMetadataStore
from icestream.model.errors import IcestreamError, TopicExistsError, UnavailableError
from icestream_servers import EtcdServer

PATIENCE_SECONDS = 60
TOPIC = "default/events"
PREFIX = "/test"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Its own, because it is stopped."""
    require("etcd")
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


@pytest.fixture
def broker(etcd: EtcdServer, tmp_path: Path) -> Iterator[BrokerProcess]:
    environ = {
        "ICESTREAM_METADATA__ETCD_ENDPOINT": etcd.url,
        "ICESTREAM_METADATA__ETCD_PREFIX": PREFIX,
        "ICESTREAM_METADATA__ETCD_TIMEOUT_MS": "1000",
    }
    with BrokerProcess(tmp_path / "broker", environ=environ) as broker:
        yield broker


def publish(client: Client, count: int) -> None:
    with client.producer(TOPIC) as producer:
        for receipt in [producer.send(b"message") for _ in range(count)]:
            receipt.result(PATIENCE_SECONDS)


def offsets(client: Client) -> list[int]:
    return client.read(TOPIC).column("offset").to_pylist()  # type: ignore[no-any-return]


def until_made(client: Client, topic: str) -> None:
    """As a client does: again, as long as the error says that it may help."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            client.create_topic(topic)
        except TopicExistsError:
            return  # an attempt whose outcome was unknown made it
        except IcestreamError as error:
            if not error.retryable or time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)
        else:
            return


def topics_in(etcd: EtcdServer) -> set[str]:
    with EtcdMetadataStore(etcd.options(prefix=PREFIX)) as store:
        return {entry.key.removeprefix(keys.topics()) for entry in store.list(keys.topics())}


def topics_of(client: Client) -> set[str]:
    return {topic.topic for topic in client.list_topics()}


def test_topics_are_in_etcd_and_outlive_kills_of_etcd_and_broker(etcd: EtcdServer, broker: BrokerProcess) -> None:
    with Client(broker.flight) as client:
        client.create_topic(TOPIC)
        client.create_topic("default/gone")
        client.delete_topic("default/gone")
        publish(client, 10)
        assert topics_in(etcd) == {TOPIC}

        etcd.kill()
        publish(client, 100)
        assert offsets(client) == list(range(110))
        with pytest.raises(UnavailableError) as raised:
            client.create_topic("default/late")
        assert raised.value.retryable
        etcd.start()
        until_made(client, "default/late")
    broker.kill()
    broker.start()
    with Client(broker.flight) as client:
        assert topics_of(client) == topics_in(etcd) == {TOPIC, "default/late"}
        assert offsets(client) == list(range(110))


def test_while_etcd_is_silent_open_topics_go_on_and_metadata_waits(etcd: EtcdServer, broker: BrokerProcess) -> None:
    with Client(broker.flight) as client:
        client.create_topic(TOPIC)
        publish(client, 10)
        etcd.pause()
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(client.create_topic, "default/late")
            publish(client, 100)
            error = late.exception(PATIENCE_SECONDS)
        assert isinstance(error, IcestreamError)
        assert error.retryable, error
        assert offsets(client) == list(range(110))
        etcd.resume()
        until_made(client, "default/late")
        publish(client, 10)
        assert offsets(client) == list(range(120))
        assert topics_in(etcd) == {TOPIC, "default/late"}
