"""Every door gives any range from any tier: what is only in the table, what is only in the log, and both together."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.reading import TOPIC, Stage

from icestream import Client
from icestream.app import Broker
from icestream.model.errors import InvalidRequestError, OffsetOutOfRangeError

PAYLOADS = [b"%d %s" % (offset, b"x" * 900) for offset in range(60)]
SERVER = {"flight_port": 0, "http_port": 0, "otlp_grpc_port": -1, "otlp_http_port": -1}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """60 messages: the table has 40, the log about the last 24."""
    path: Path = tmp_path_factory.mktemp("doors")
    stage = Stage(path, server=SERVER)
    for payload in PAYLOADS[:20]:
        stage.publish([payload])
    stage.commit().tag("twenty")
    for payload in PAYLOADS[20:]:
        stage.publish([payload])
    stage.commit(40)
    assert 30 < stage.prune() <= 40
    stage.close()
    with Broker(stage.settings) as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.doors["flight"]) as opened:
        yield opened


def get(broker: Broker, **query: Any) -> Any:
    fields = "&".join(f"{name}={value}" for name, value in query.items())
    with urllib.request.urlopen(f"{broker.doors['http']}/api/v1/topics/{TOPIC}/messages?{fields}") as answer:
        return json.load(answer)


def test_a_range_may_end_behind_the_topic(client: Client) -> None:
    assert client.read(TOPIC, start=50, end=1_000)["payload"].to_pylist() == PAYLOADS[50:]
    assert client.read(TOPIC, start=60, end=1_000).num_rows == 0
    with pytest.raises(OffsetOutOfRangeError):
        client.read(TOPIC, start=61, end=1_000)


@pytest.mark.parametrize(("start", "end"), [(0, 60), (0, 10), (5, 38), (38, 45), (59, 60), (17, 17), (0, 0)])
def test_a_range_is_read_exactly(client: Client, start: int, end: int) -> None:
    table = client.read(TOPIC, start, end)
    assert table.column("offset").to_pylist() == list(range(start, end))
    assert table.column("payload").to_pylist() == PAYLOADS[start:end]


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("tag:twenty", 20), ("latest", 60), ("33", 33)])
def test_a_stream_begins_at_any_position(client: Client, broker: Broker, start: str, first: int) -> None:
    with client.consume(TOPIC, start) as consumer:
        assert [message.offset for message in consumer] == list(range(first, 60))
    answer = get(broker, start=start, max_messages=100)
    assert [message["offset"] for message in answer["messages"]] == list(range(first, 60))
    assert answer["next_offset"] == 60


def test_a_position_that_means_nothing_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="nowhere"):
        client.read(TOPIC, "tag:nowhere")
    with pytest.raises(InvalidRequestError):
        client.read(TOPIC, "snapshot:17")
    with pytest.raises(InvalidRequestError, match="not a start position"):
        client.read(TOPIC, "snapshot:x")
    with pytest.raises(OffsetOutOfRangeError):
        client.read(TOPIC, 61)


def test_http_reads_piece_by_piece_over_the_tiers(broker: Broker) -> None:
    offset, found = 0, []
    while offset < 60:
        answer = get(broker, start=offset, max_messages=7)
        found += [message["offset"] for message in answer["messages"]]
        assert answer["next_offset"] == min(60, offset + 7)
        offset = answer["next_offset"]
    assert found == list(range(60))


def test_the_broker_leaves_out_columns_and_messages(client: Client) -> None:
    table = client.read(TOPIC, 10, 50, columns=["payload", "offset"], where="key = 'x'")
    assert table.schema.names == ["payload", "offset"]
    assert table.column("offset").to_pylist() == list(range(10, 50))
    few = client.read(TOPIC, columns=["key"], where="offset < 3 or offset between 39 and 41 or offset >= 59")
    assert few.num_rows == 7
    assert few.schema.names == ["key"]
    with pytest.raises(InvalidRequestError, match="no columns price"):
        client.read(TOPIC, columns=["price"])
    with pytest.raises(InvalidRequestError, match="price"):
        client.read(TOPIC, where="price = 1")


def test_a_filtered_stream_has_gaps_on_purpose(client: Client) -> None:
    with client.consume(TOPIC, where="offset in (1, 20, 39, 40, 58)") as consumer:
        assert [message.offset for message in consumer] == [1, 20, 39, 40, 58]
    with client.consume(TOPIC, where="offset > 7", max_messages=3, follow=True) as consumer:
        assert [message.offset for message in consumer] == [8, 9, 10]
    with client.consume(TOPIC, where="offset < 0", end=60, follow=True) as consumer:
        assert list(consumer) == []


@pytest.mark.parametrize("start", [0, 5, 38, 59])
@pytest.mark.parametrize("most", [None, 1, 30, 1_000])
def test_the_socket_door_gives_what_is_only_in_the_table_and_goes_on_with_the_log(
    client: Client, start: int, most: int | None
) -> None:
    with client.consume(TOPIC, start=start, max_messages=most) as consumer:
        found = [(message.offset, message.payload) for message in consumer]
        assert consumer._thread is None, "Flight would need a thread"
    end = 60 if most is None else min(60, start + most)
    assert found == list(zip(range(start, end), PAYLOADS[start:end], strict=True))


@pytest.mark.parametrize(("start", "end"), [(0, 10), (5, 38), (38, 45), (0, 60)])
def test_the_socket_door_ends_where_it_is_told_to(client: Client, start: int, end: int) -> None:
    with client.consume(TOPIC, start=start, end=end) as consumer:
        assert [message.payload for message in consumer] == PAYLOADS[start:end]
    with client.consume(TOPIC, start=start, end=61) as consumer, pytest.raises(OffsetOutOfRangeError):
        consumer.poll()
