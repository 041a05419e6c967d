"""A real broker is sent nonsense. It answers with typed errors, lives, and a sound publish works afterwards."""

import itertools
import json
import os
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration.flight.plain import (
    ERROR_FIELDS,
    MESSAGES,
    PATIENCE_SECONDS,
    PlainClient,
    Publishing,
    encoded,
    messages,
)
from tests.integration.flight.raw import IpcMessage, RawPut

from icestream.broker_process import BrokerProcess

EXAMPLES = 5000 if os.environ.get("ICESTREAM_SOAK") else 120
TOPIC = "fuzz/topic"
FIELDS = ("topic", "producer", "sequence", "ack", "more", "id", "start", "end", "max_messages", "schema", "prefix")
ACTIONS = ("create_topic", "list_topics", "describe_topic", "update_topic", "open_producer", "stats", "ping")
"""All but `delete_topic`, which would only make the others fail, and nonsense among them."""

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


class Target:
    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.client = PlainClient(broker.flight)
        self._numbers = itertools.count()

    def check(self) -> None:
        """The broker lives, and what is sound is stored."""
        assert self.broker.is_running, self.broker.log()
        stream = Publishing(self.client.flight)
        answer = stream.publish(messages(b"sound"), topic="fuzz/sound")
        assert answer["base_offset"] == next(self._numbers), answer
        stream.finish()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with BrokerProcess(tmp_path_factory.mktemp("fuzz") / "data") as broker:
        target = Target(broker)
        target.client.action("create_topic", topic=TOPIC)
        yield target
        target.client.close()


def check_error(fields: dict[str, Any]) -> None:
    assert set(fields) == ERROR_FIELDS
    assert fields["code"] not in {"error", "damaged"}, f"an error that says nothing: {fields}"


def check_failure(error: Exception) -> None:
    extra = getattr(error, "extra_info", b"")
    assert extra, f"not a typed error: {error!r}"
    check_error(json.loads(extra))


text = st.one_of(
    st.sampled_from((TOPIC, "fuzz/other", "p", "memory", "disk", "earliest", "latest")), st.text(max_size=30)
)
number = st.one_of(st.integers(-3, 200), st.sampled_from((2**31, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63))))
scalar = st.one_of(st.none(), st.booleans(), number, st.floats(), text)
value = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6
)
position = st.one_of(value, st.fixed_dictionaries({"time_us": value}))


def requests(*names: str) -> st.SearchStrategy[bytes]:
    """Bytes that are no request, JSON that is none, and objects of mostly known fields with any values."""
    known = st.fixed_dictionaries({}, optional={name: position if name == "start" else value for name in names})
    objects = st.builds(lambda fields, topic: {"topic": topic, **fields}, known, st.one_of(st.just(TOPIC), text))
    return st.one_of(
        st.binary(max_size=200),
        value.map(json.dumps).map(str.encode),
        objects.map(json.dumps).map(str.encode),
        st.dictionaries(text, value, max_size=3).map(json.dumps).map(str.encode),
    )


@fuzz
@given(metadata=st.lists(requests("producer", "sequence", "ack", "more", "id"), min_size=1, max_size=4))
def test_any_metadata_is_answered(target: Target, metadata: list[bytes]) -> None:
    stream = Publishing(target.client.flight)
    for data in metadata:
        stream.write(messages(b"x"), data)
    answers = stream.finish()
    assert len(answers) == len(metadata)
    for answer in answers:
        assert "id" in answer
        if "error" in answer:
            check_error(answer["error"])
    target.check()


@fuzz
@given(ticket=requests("start", "end", "max_messages"))
def test_any_ticket_is_answered(target: Target, ticket: bytes) -> None:
    try:
        target.client.reader(ticket).read_all()
    except (fl.FlightError, pa.ArrowException) as error:
        check_failure(error)
    target.check()


@fuzz
@given(action=st.one_of(st.sampled_from(ACTIONS), st.text(max_size=20)), body=requests(*FIELDS))
def test_any_action_is_answered(target: Target, action: str, body: bytes) -> None:
    try:
        target.client.action(action.encode(errors="replace").decode(), body)
    except (fl.FlightError, pa.ArrowException) as error:
        check_failure(error)
    target.check()


@fuzz
@given(data=st.data())
def test_any_schema_makes_a_topic_or_an_error(target: Target, data: st.DataObject) -> None:
    sound = pa.schema([("a", pa.int32()), ("b", pa.list_(pa.string())), ("c", pa.dictionary(pa.int8(), pa.string()))])
    buffer = bytearray(sound.serialize().to_pybytes())
    for place, byte in data.draw(changes(len(buffer))):
        buffer[place] = byte
    schema = pa.py_buffer(bytes(buffer))
    name = f"fuzz/schema-{next(SCHEMAS)}"
    try:
        target.client.action("create_topic", topic=name, schema=encode_buffer(schema))
    except (fl.FlightError, pa.ArrowException) as error:
        check_failure(error)
    else:
        target.client.action("delete_topic", topic=name)
    target.check()


SCHEMAS = itertools.count()


def encode_buffer(buffer: pa.Buffer) -> str:
    class Serialized:
        def serialize(self) -> pa.Buffer:
            return buffer

    return encoded(Serialized())


def changes(length: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(st.tuples(st.integers(0, length - 1), st.integers(0, 255)), max_size=6)


arrays = st.one_of(
    st.lists(st.one_of(st.none(), st.binary(max_size=20)), max_size=5).map(
        lambda values: pa.array(values, pa.binary())
    ),
    st.lists(st.one_of(st.none(), st.integers(-5, 5)), max_size=5).map(lambda values: pa.array(values, pa.int64())),
    st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=5).map(
        lambda values: pa.array(values, pa.string()).dictionary_encode()
    ),
    st.lists(st.lists(st.floats(), max_size=3), max_size=5).map(
        lambda values: pa.array(values, pa.list_(pa.float64()))
    ),
    st.integers(0, 5).map(pa.nulls),
    st.lists(st.integers(0, 9), max_size=5).map(
        lambda values: pa.StructArray.from_arrays([pa.array(values, pa.int8())], ["key"])
    ),
)


@fuzz
@given(
    columns=st.lists(arrays, min_size=0, max_size=4), names=st.permutations(["key", "attributes", "payload", "other"])
)
def test_a_sound_batch_of_any_columns_is_answered(target: Target, columns: list[pa.Array], names: list[str]) -> None:
    length = min((len(column) for column in columns), default=0)
    batch = pa.record_batch([column.slice(0, length) for column in columns], names=names[: len(columns)])
    stream = Publishing(target.client.flight, batch.schema)
    check_error(stream.publish(batch, topic=TOPIC)["error"])
    stream.finish()
    target.check()


def sound_batch() -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([b"k", None, b"key", b""], pa.binary()),
            pa.array([[("a", "1")], None, [("b", "2"), ("c", "3")], []], MESSAGES[1].type),
            pa.array([b"first", b"", b"third payload", b"x" * 100], pa.binary()),
        ],
        schema=MESSAGES,
    )


def corrupted(message: IpcMessage, data: st.DataObject) -> IpcMessage:
    """Some bytes of header or body changed, offsets rewritten at any place, the end missing or too long."""
    header, body = bytearray(message.header), bytearray(message.body)
    kind = data.draw(st.sampled_from(("header", "body", "offsets", "length", "all")), label="what is changed")
    if kind in {"header", "all"}:
        for place, byte in data.draw(changes(len(header)), label="header"):
            header[place] = byte
    if kind in {"body", "all"}:
        for place, byte in data.draw(changes(len(body)), label="body"):
            body[place] = byte
    if kind in {"offsets", "all"}:
        words = st.tuples(st.integers(0, len(body) // 4 - 1), st.integers(-(2**31), 2**31 - 1) | st.integers(-200, 200))
        for place, word in data.draw(st.lists(words, max_size=8), label="offsets"):
            body[place * 4 : place * 4 + 4] = word.to_bytes(4, "little", signed=True)
    if kind in {"length", "all"}:
        length = data.draw(st.integers(0, len(body) + 64), label="length")
        body = body[:length] + bytes(max(0, length - len(body)))
    return IpcMessage(bytes(header), bytes(body))


@fuzz
@given(data=st.data())
def test_a_corrupted_arrow_message_is_refused_or_sound_by_chance(target: Target, data: st.DataObject) -> None:
    schema = IpcMessage.of(MESSAGES.serialize())
    message = corrupted(IpcMessage.of(sound_batch().serialize()), data)
    metadata = json.dumps({"topic": TOPIC}).encode()
    with RawPut(target.broker.flight, schema.header, timeout_seconds=PATIENCE_SECONDS) as put:
        put.send(message.header, message.body, metadata)
        for answer in put.answers():
            if "error" in answer:
                check_error(answer["error"])
    target.check()
    # What was taken is sound: it can be read, and validates.
    target.client.read(topic=TOPIC).validate(full=True)


def test_the_hand_made_call_is_understood_when_it_is_sound(target: Target) -> None:
    schema, message = IpcMessage.of(MESSAGES.serialize()), IpcMessage.of(sound_batch().serialize())
    with RawPut(target.broker.flight, schema.header, timeout_seconds=PATIENCE_SECONDS) as put:
        for _ in range(3):
            put.send(message.header, message.body, json.dumps({"topic": "fuzz/raw"}).encode())
        answers = put.answers()
    assert [(answer["base_offset"], answer["count"]) for answer in answers] == [(0, 4), (4, 4), (8, 4)]
    assert target.client.payloads("fuzz/raw") == sound_batch()["payload"].to_pylist() * 3


@fuzz
@given(schema=st.binary(max_size=200), header=st.binary(max_size=200), body=st.binary(max_size=200))
def test_a_call_of_random_messages_does_no_harm(target: Target, schema: bytes, header: bytes, body: bytes) -> None:
    with RawPut(target.broker.flight, schema, timeout_seconds=PATIENCE_SECONDS) as put:
        put.send(header, body, b'{"topic": "fuzz/topic"}')
        put.answers()
    target.check()


@fuzz
@given(data=st.binary(max_size=300), within=st.booleans())
def test_random_bytes_on_the_port_do_no_harm(target: Target, data: bytes, within: bool) -> None:
    if within:
        schema = IpcMessage.of(MESSAGES.serialize())
        with RawPut(target.broker.flight, schema.header, timeout_seconds=PATIENCE_SECONDS) as put:
            put.send_bytes(data)
    else:
        address = urlsplit(target.broker.flight)
        with socket.create_connection((address.hostname, address.port), PATIENCE_SECONDS) as raw:
            raw.sendall(data)
    target.check()


def test_none_of_this_was_an_error_of_the_broker_and_it_stops_cleanly(target: Target) -> None:
    """Comes last. What clients send is never a fault of the broker's own, which it logs with its trace."""
    assert set(target.client.payloads("fuzz/sound")) <= {b"sound"}
    assert target.broker.terminate() == 0
    _, _, failure = target.broker.log_file.read_text().partition("flight_call_failed")
    assert failure[:4000] == ""
