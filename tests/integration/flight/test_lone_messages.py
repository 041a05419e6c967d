"""Messages that travel without a batch, against `docs/protocol.md`, with a plain Flight client."""

import struct

import pyarrow as pa
import pytest
from tests.integration.flight.conftest import OpenDoor, Running
from tests.integration.flight.plain import MESSAGES, PlainClient, Publishing, encoded, error_of, messages

TOPIC = "flight/alone"
NOTHING = struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF)
OWN = pa.schema([pa.field("celsius", pa.float64())])


@pytest.fixture
def stream(client: PlainClient) -> Publishing:
    return client.publishing()


def text(value: str) -> bytes:
    return struct.pack("<I", len(value.encode())) + value.encode()


def test_it_is_stored_and_read_like_any_other(client: PlainClient, stream: Publishing) -> None:
    pairs = text("a") + text("\u00e9")
    keyed = struct.pack("<II", 2, len(pairs)) + b"me" + pairs + b"second"
    first = stream.publish_alone(NOTHING + b"first", topic=TOPIC, producer="p", sequence=0)
    second = stream.publish_alone(keyed, topic=TOPIC, producer="p", sequence=1)
    third = stream.publish(messages(b"third"), topic=TOPIC, producer="p", sequence=2)
    assert [answer["base_offset"] for answer in (first, second, third)] == [0, 1, 2]
    assert set(first) == {"id", "base_offset", "count", "publish_time_us"}
    rows = client.read(topic=TOPIC).select(["key", "attributes", "payload", "sequence"]).to_pylist()
    assert rows == [
        {"key": None, "attributes": None, "payload": b"first", "sequence": 0},
        {"key": b"me", "attributes": [("a", "\u00e9")], "payload": b"second", "sequence": 1},
        {"key": None, "attributes": None, "payload": b"third", "sequence": 2},
    ]


def test_sent_again_in_either_form_it_is_recognised(client: PlainClient, stream: Publishing) -> None:
    for _ in range(2):
        answer = stream.publish_alone(NOTHING + b"once", topic=TOPIC, producer="p", sequence=0)
    assert answer["duplicate"]
    assert stream.publish(messages(b"once"), topic=TOPIC, producer="p", sequence=0)["duplicate"]
    assert client.payloads(TOPIC) == [b"once"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        NOTHING[:-1],
        struct.pack("<II", 3, 0xFFFFFFFF) + b"ab",
        struct.pack("<II", 0xFFFFFFFF, 9) + b"abc",
        struct.pack("<II", 0xFFFFFFFF, 9) + text("a") + text("bcdef"),
        struct.pack("<II", 0xFFFFFFFF, 10) + text("\u00e9")[:-1] + b"x" + text(""),
    ],
    ids=["empty", "cut", "key too long", "attributes too long", "an attribute too long", "not UTF-8"],
)
def test_a_body_that_is_not_sound_is_refused_and_the_stream_goes_on(
    client: PlainClient, stream: Publishing, body: bytes
) -> None:
    error_of(stream.publish_alone(body, topic=TOPIC, producer="p", sequence=0), "invalid_message")
    stream.publish_alone(NOTHING + b"sound", topic=TOPIC, producer="p", sequence=0)
    assert client.payloads(TOPIC) == [b"sound"]


def test_metadata_that_is_no_message_gets_an_answer(stream: Publishing) -> None:
    stream.writer.write_metadata(b'{"topic": "flight/alone"}')
    assert "neither a batch nor" in error_of(stream.answer(), "invalid_request")["message"]


def test_several_producers_messages_travel_together(client: PlainClient, stream: Publishing) -> None:
    bodies = [NOTHING + b"a", NOTHING, NOTHING + b"ccc", b"not sound"]
    parts = [
        {"producer": f"p{number}", "sequence": 0, "count": 1, "id": number, "nbytes": len(body)}
        for number, body in enumerate(bodies)
    ]
    answers = stream.publish_alone(b"".join(bodies), topic=TOPIC, parts=parts)["answers"]
    found = {answer["id"]: answer for answer in answers}
    assert [found[number]["base_offset"] for number in range(3)] == [0, 1, 2]
    error_of(found[3], "invalid_message")
    table = client.read(topic=TOPIC)
    assert table["payload"].to_pylist() == [b"a", b"", b"ccc"]
    assert table["producer"].to_pylist() == ["p0", "p1", "p2"]


@pytest.mark.parametrize(
    "part",
    [{}, {"nbytes": 7}, {"nbytes": 9}, {"nbytes": -8}, {"nbytes": 8, "count": 2}, {"nbytes": 8, "count": 0}],
    ids=str,
)
def test_parts_that_do_not_make_up_the_bytes_are_refused(stream: Publishing, part: dict[str, int]) -> None:
    stream.write_alone(NOTHING, topic=TOPIC, parts=[{"count": 1, "id": 5, **part}])
    (answer,) = stream.answer()["answers"]
    assert "do not make up" in error_of(answer, "invalid_request")["message"]


def test_a_topic_with_columns_of_its_own_takes_none(client: PlainClient) -> None:
    client.action("create_topic", topic="flight/own", schema=encoded(OWN))
    answer = client.publishing(OWN).publish_alone(NOTHING + b"x", topic="flight/own")
    assert "celsius" in error_of(answer, "invalid_message")["message"]


def test_columns_of_its_own_may_be_those_of_messages(client: PlainClient) -> None:
    client.action("create_topic", topic="flight/same", schema=encoded(MESSAGES))
    stream = client.publishing()
    assert stream.publish_alone(NOTHING + b"alone", topic="flight/same")["base_offset"] == 0
    assert stream.publish(messages(b"batch"), topic="flight/same")["base_offset"] == 1
    assert client.payloads("flight/same") == [b"alone", b"batch"]


def test_one_that_is_too_large_is_refused(open_door: OpenDoor) -> None:
    stream = open_door(server={"max_message_bytes": 1024}).client.publishing()
    error_of(stream.publish_alone(NOTHING + b"x" * 1025, topic=TOPIC), "too_large")
    assert stream.publish_alone(NOTHING + b"x" * 1024, topic=TOPIC)["base_offset"] == 0
    error_of(stream.publish_alone(NOTHING + b"x" * 65536, topic=TOPIC), "invalid_message")


def test_what_is_kept_of_it_is_its_body_alone(running: Running) -> None:
    stream = running.client.publishing()
    stream.publish_alone(NOTHING + b"x", topic=TOPIC, producer="p" * 200, sequence=0)
    parts = [{"count": 1, "id": number, "nbytes": 9} for number in range(2)]
    stream.publish_alone((NOTHING + b"y") * 2, topic=TOPIC, parts=parts)
    frames = running.storage.topic(TOPIC).log.cache.read(0, 1 << 20)
    assert [memoryview(memoryview(frame.body).obj).nbytes for frame in frames] == [9, 9, 9]
