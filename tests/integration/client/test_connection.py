import pickle
import subprocess
import sys

import pyarrow as pa
import pytest
from tests.integration.client.broker import VERSION, ScriptedBroker
from tests.integration.client.conftest import TOPIC

import icestream
from icestream import Client
from icestream.model.errors import (
    IcestreamError,
    InvalidNameError,
    TopicExistsError,
    TopicNotFoundError,
    UnavailableError,
)


def test_topics_are_made_listed_changed_and_deleted(client: Client) -> None:
    made = client.create_topic("events", ack="memory")
    assert (made.topic, made.ack, made.durable_end, made.message_count) == ("default/events", "memory", 0, 0)
    with pytest.raises(TopicExistsError):
        client.create_topic("events")
    assert client.create_topic("events", if_not_exists=True) == made
    assert client.update_topic("events", ack="disk").ack == "disk"
    assert [topic.topic for topic in client.list_topics("default/e")] == ["default/events"]
    assert client.describe_topic("events").to_dict()["schema"] is None
    assert client.stats("events")["topics"][0]["topic"] == "default/events"
    assert client.ping()["version"] == VERSION
    client.delete_topic("events")
    with pytest.raises(TopicNotFoundError):
        client.describe_topic("events")


def test_a_topics_schema_comes_back(client: Client) -> None:
    schema = pa.schema([pa.field("id", pa.int64())])
    made = client.create_topic("own", schema)
    assert made.schema == schema
    assert made.to_dict()["schema"] == "id: int64"


def test_a_listed_topic_whose_log_is_not_open_has_no_offsets_yet(client: Client, broker: ScriptedBroker) -> None:
    with client.producer(TOPIC) as producer:
        producer.send(b"x")
    broker.stop()
    broker.start()
    (listed,) = client.list_topics()
    assert (listed.start_offset, listed.durable_end, listed.message_count) == (None, None, None)
    assert client.describe_topic(TOPIC).message_count == 1
    (listed,) = client.list_topics()
    assert (listed.start_offset, listed.durable_end, listed.message_count) == (0, 1, 1)


def test_names_are_checked_before_anything_is_asked(client: Client) -> None:
    for call in (client.create_topic, client.describe_topic, client.delete_topic, client.read, client.stats):
        with pytest.raises(InvalidNameError):
            call("a/b/c")


def test_nothing_listening_is_said_clearly(broker: ScriptedBroker) -> None:
    broker.stop()
    with Client(broker.url) as client:
        for call in (client.ping, lambda: client.producer(TOPIC), lambda: client.read(TOPIC)):
            with pytest.raises(UnavailableError, match=f"cannot reach a broker at {broker.url}"):
                call()
        with client.consume(TOPIC, follow=True) as consumer, pytest.raises(UnavailableError, match="cannot reach"):
            next(consumer)


def test_the_package_gives_its_names_and_loads_arrow_only_when_asked() -> None:
    for name in icestream.__all__:
        assert getattr(icestream, name) is not None
    assert icestream.errors.IcestreamError is IcestreamError
    with pytest.raises(AttributeError):
        _ = icestream.nothing
    code = "import sys, icestream; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_errors_of_the_broker_can_be_sent_between_processes(client: Client) -> None:
    with pytest.raises(TopicNotFoundError) as caught:
        client.describe_topic("none")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
