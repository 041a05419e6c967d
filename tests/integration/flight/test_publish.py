"""DoPut against `docs/protocol.md`, with a plain Flight client."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from tests.integration.flight.conftest import OpenDoor, Running
from tests.integration.flight.plain import MESSAGES, PlainClient, Publishing, encoded, error_of, failure, messages

TOPIC = "flight/topic"


@pytest.fixture
def stream(client: PlainClient) -> Publishing:
    return client.publishing()


def test_an_answer_has_the_fields_of_the_page_and_nothing_else(client: PlainClient, stream: Publishing) -> None:
    answer = stream.publish(messages(b"a", b"b"), topic=TOPIC)
    assert set(answer) == {"id", "base_offset", "count", "publish_time_us"}
    assert (answer["id"], answer["base_offset"], answer["count"]) == (0, 0, 2)
    answer = stream.publish(messages(b"c"), topic=TOPIC)
    assert (answer["id"], answer["base_offset"], answer["count"]) == (1, 2, 1)
    assert stream.finish() == []
    table = client.read(topic=TOPIC)
    assert table["publish_time"].cast(pa.int64()).to_pylist()[-1] == answer["publish_time_us"]


def test_ids_come_back_and_others_count_on(stream: Publishing) -> None:
    ids: list[dict[str, Any]] = [{"id": 7}, {}, {"id": -3}, {"id": None}, {"id": 10**15}, {}]
    for number in ids:
        stream.write(messages(b"x"), topic=TOPIC, **number)
    assert [answer["id"] for answer in stream.finish()] == [7, 1, -3, 3, 10**15, 5]


def test_messages_keep_payload_key_and_attributes(client: PlainClient, stream: Publishing) -> None:
    batch = pa.record_batch(
        [
            pa.array([b"k", None, b""], pa.binary()),
            pa.array([[("a", "1"), ("b", "2")], None, []], pa.map_(pa.string(), pa.string())),
            pa.array([b"x", b"", bytes(range(256))], pa.binary()),
        ],
        schema=MESSAGES,
    )
    stream.publish(batch, topic=TOPIC, producer="p", sequence=5)
    table = client.read(topic=TOPIC)
    assert table.column_names == ["offset", "publish_time", "producer", "sequence", "key", "attributes", "payload"]
    for name in ("key", "attributes", "payload"):
        assert table[name].to_pylist() == batch.column(name).to_pylist()
    assert table["producer"].to_pylist() == ["p"] * 3
    assert table["sequence"].to_pylist() == [5, 6, 7]


def test_one_stream_carries_many_topics_each_in_its_order(client: PlainClient, stream: Publishing) -> None:
    topics = [f"flight/topic-{number}" for number in range(5)]
    for number in range(200):
        stream.write(messages(str(number).encode()), topic=topics[number % 5], more=True)
    answers = stream.finish()
    assert sorted(answer["id"] for answer in answers) == list(range(200))
    for place, topic in enumerate(topics):
        own = [answer for answer in answers if answer["id"] % 5 == place]
        assert [answer["id"] for answer in own] == list(range(place, 200, 5))
        assert [answer["base_offset"] for answer in own] == list(range(40))
        assert client.payloads(topic) == [str(number).encode() for number in range(place, 200, 5)]


@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize("ack", ["memory", "disk"])
def test_results_are_the_same_whether_the_client_sends_on_or_waits_and_at_every_level(
    client: PlainClient, stream: Publishing, more: bool, ack: str
) -> None:
    for number in range(50):
        stream.write(messages(b"x"), topic=TOPIC, producer="p", sequence=number, more=more, ack=ack)
    assert [answer["base_offset"] for answer in stream.finish()] == list(range(50))
    assert client.action("open_producer", topic=TOPIC, producer="p")["next_sequence"] == 50


def test_every_batch_gets_one_answer_and_its_place_also_when_others_are_refused_or_need_no_disk(
    stream: Publishing,
) -> None:
    """A refusal is known at once, and a level in memory too: they may overtake, and are told apart by their id."""
    for number in range(0, 300, 3):
        sequence = number // 3
        stream.write(messages(b"x" * 1000), topic=TOPIC, producer="p", sequence=sequence, more=True, id=number)
        stream.write(messages(b"y"), topic=TOPIC, producer="p", sequence=10**6, more=True, id=number + 1)
        stream.write(messages(b"z"), topic=TOPIC, ack="memory", more=True, id=number + 2)
    answers = sorted(stream.finish(), key=lambda answer: int(answer["id"]))
    assert [answer["id"] for answer in answers] == list(range(300))
    for answer in answers[1::3]:
        error_of(answer, "sequence_gap")
    assert [answer["base_offset"] for answer in answers if "error" not in answer] == list(range(200))


def test_after_an_error_for_one_batch_the_stream_goes_on(client: PlainClient, stream: Publishing) -> None:
    assert stream.publish(messages(b"a"), topic=TOPIC)["base_offset"] == 0
    for metadata in (b"", b"{}", b"[]", b"null", b"\xff", b'{"topic":', b'{"topic": 3}', b'{"topic": ""}', b"7"):
        answer = stream.publish(messages(b"-"), metadata)
        assert answer["error"]["code"] in {"invalid_request", "invalid_name"}, answer
        assert not answer["error"]["retryable"]
    assert stream.publish(messages(b"b"), topic=TOPIC)["base_offset"] == 1
    assert client.payloads(TOPIC) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topics": TOPIC}, "invalid_request"),
        ({"ack": "safe"}, "invalid_request"),
        ({"ack": 1}, "invalid_request"),
        ({"more": "yes"}, "invalid_request"),
        ({"more": 1}, "invalid_request"),
        ({"id": "1"}, "invalid_request"),
        ({"id": True}, "invalid_request"),
        ({"producer": "p"}, "invalid_request"),
        ({"producer": 1, "sequence": 0}, "invalid_request"),
        ({"producer": "p", "sequence": -1}, "invalid_request"),
        ({"producer": "p", "sequence": 1.5}, "invalid_request"),
        ({"producer": "p", "sequence": 2**63}, "invalid_request"),
        ({"producer": "a\nb", "sequence": 0}, "invalid_name"),
        ({"producer": "x" * 201, "sequence": 0}, "invalid_name"),
        ({"topic": "../etc"}, "invalid_name"),
        ({"topic": "a/b/c"}, "invalid_name"),
        ({"topic": "a/.."}, "invalid_name"),
        ({"topic": "x" * 300}, "invalid_name"),
        ({"topic": "flight/\ud800"}, "invalid_request"),
        ({"\ud800": 1}, "invalid_request"),
    ],
    ids=repr,
)
def test_a_field_that_is_not_as_the_page_says_is_refused(stream: Publishing, fields: dict[str, Any], code: str) -> None:
    error = stream.refused(code, messages(b"x"), **{"topic": TOPIC, **fields})
    assert not error["retryable"]
    assert stream.publish(messages(b"x"), topic=TOPIC)["base_offset"] == 0


def test_an_error_names_the_unknown_field_and_the_known_ones(stream: Publishing) -> None:
    error = stream.refused("invalid_request", messages(b"x"), topic=TOPIC, sequnce=1)
    assert "sequnce" in error["message"]
    assert "sequence" in error["remedy"]


def test_a_repeated_batch_gets_its_first_offsets_and_is_called_a_duplicate(
    client: PlainClient, stream: Publishing
) -> None:
    first = stream.publish(messages(b"a", b"b"), topic=TOPIC, producer="p", sequence=0)
    stream.publish(messages(b"c"), topic=TOPIC)
    again = client.publishing().publish(messages(b"a", b"b"), topic=TOPIC, producer="p", sequence=0)
    assert again.pop("duplicate") is True
    assert again == first
    assert client.payloads(TOPIC) == [b"a", b"b", b"c"]


def test_without_a_producer_nothing_is_de_duplicated(client: PlainClient, stream: Publishing) -> None:
    for offset in range(3):
        assert stream.publish(messages(b"a"), topic=TOPIC, sequence=0)["base_offset"] == offset
    assert client.payloads(TOPIC) == [b"a"] * 3


def test_a_gap_is_refused_until_what_is_missing_was_sent(client: PlainClient, stream: Publishing) -> None:
    stream.publish(messages(b"0"), topic=TOPIC, producer="p", sequence=0)
    for sequence in (2, 3):
        error = stream.refused("sequence_gap", messages(b"-"), topic=TOPIC, producer="p", sequence=sequence)
        assert error["details"] == {"expected": 1, "sequence": sequence}
    for number in (1, 2, 3):
        stream.publish(messages(str(number).encode()), topic=TOPIC, producer="p", sequence=number)
    assert client.payloads(TOPIC) == [b"0", b"1", b"2", b"3"]


def test_other_bytes_under_a_stored_sequence_are_not_taken(stream: Publishing) -> None:
    stream.publish(messages(b"a", b"b"), topic=TOPIC, producer="p", sequence=0)
    error = stream.refused("sequence_gap", messages(b"a"), topic=TOPIC, producer="p", sequence=0)
    assert error["details"]["expected"] == 2


def test_numbering_is_of_one_topic_and_producer(stream: Publishing) -> None:
    for topic in ("flight/a", "flight/b"):
        for producer in ("p", "q"):
            answer = stream.publish(messages(b"x"), topic=topic, producer=producer, sequence=0)
            assert "duplicate" not in answer


def test_a_failed_batch_makes_those_behind_it_fail_so_that_order_is_kept(
    client: PlainClient, stream: Publishing
) -> None:
    stream.publish(messages(b"0"), topic=TOPIC, producer="p", sequence=0)
    stream.write(pa.record_batch([[None], [None], [b""]], schema=MESSAGES).slice(0, 0), b"{}", id=1)
    stream.write(messages(b"1"), topic=TOPIC, producer="p", sequence=1, ack="safe", more=True)
    stream.write(messages(b"2"), topic=TOPIC, producer="p", sequence=2, more=True)
    answers = stream.finish()
    assert [answer["error"]["code"] for answer in answers] == ["invalid_request", "invalid_request", "sequence_gap"]
    assert client.payloads(TOPIC) == [b"0"]


@pytest.mark.parametrize("path", [(), ("publish", "more"), ("Publish",), ("",), ("flight", "topic")], ids="/".join)
def test_another_descriptor_is_refused(client: PlainClient, path: tuple[str, ...]) -> None:
    stream = client.publishing(path=path)

    def publish() -> None:
        stream.publish(messages(b"x"), topic=TOPIC)

    assert failure(publish)["code"] == "invalid_request"
    assert client.publishing().publish(messages(b"x"), topic=TOPIC)["base_offset"] == 0


def test_a_stream_that_cannot_be_decoded_ends_with_a_typed_error(running: Running) -> None:
    def undecodable() -> Iterator[Any]:
        yield from ()
        raise pa.ArrowInvalid("not an Arrow message")

    descriptor = fl.FlightDescriptor.for_path("publish")
    context = SimpleNamespace(is_cancelled=lambda: False)
    assert failure(running.door.do_put, context, descriptor, undecodable(), None)["code"] == "invalid_message"


def test_a_batch_of_other_columns_is_refused_and_says_which_are_wanted(client: PlainClient) -> None:
    schema = pa.schema([pa.field("payload", pa.string())])
    stream = client.publishing(schema)
    error = stream.refused("invalid_message", pa.record_batch([["x"]], schema=schema), topic=TOPIC)
    assert "payload: string" in error["message"]
    assert "payload: binary not null" in error["message"]


def test_a_null_payload_and_an_empty_batch_are_refused(client: PlainClient, stream: Publishing) -> None:
    nullable = pa.schema([field.with_nullable(True) for field in MESSAGES])
    batch = pa.record_batch([[b"k"], [None], [None]], schema=nullable)
    stream.refused("invalid_message", pa.RecordBatch.from_arrays(batch.columns, schema=MESSAGES), topic=TOPIC)
    stream.refused("invalid_message", messages(), topic=TOPIC)
    assert client.payloads(TOPIC) == []


def test_a_topic_of_its_own_schema_takes_exactly_those_columns(client: PlainClient) -> None:
    schema = pa.schema([pa.field("city", pa.string(), nullable=False), pa.field("degrees", pa.float64())])
    client.action("create_topic", topic="flight/weather", schema=encoded(schema))
    batch = pa.record_batch([["Oslo", "Rome"], [3.5, None]], schema=schema)
    stream = client.publishing(schema)
    assert stream.publish(batch, topic="flight/weather", producer="p", sequence=0)["base_offset"] == 0
    table = client.read(topic="flight/weather")
    assert table.column_names == ["_offset", "_publish_time", "_producer", "_sequence", "city", "degrees"]
    assert table["city"].to_pylist() == ["Oslo", "Rome"]
    assert table["_sequence"].to_pylist() == [0, 1]
    other = schema.remove(1)
    client.publishing(other).refused("invalid_message", batch.select(["city"]), topic="flight/weather")
    client.publishing().refused("invalid_message", messages(b"x"), topic="flight/weather")


def test_where_topics_are_not_made_by_publishing_an_unknown_one_is_refused(open_door: OpenDoor) -> None:
    client = open_door(topics={"auto_create": False}).client
    stream = client.publishing()
    error = stream.refused("topic_not_found", messages(b"x"), topic=TOPIC)
    assert not error["retryable"]
    assert error["place"] == TOPIC
    assert failure(client.action, "open_producer", topic=TOPIC, producer="p")["code"] == "topic_not_found"
    client.action("create_topic", topic=TOPIC)
    assert stream.publish(messages(b"x"), topic=TOPIC)["base_offset"] == 0
