"""Arrow bodies, in both directions."""

import random
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.integration.http.conftest import Running, error_of

from icestream.model.messages import MESSAGE_SCHEMA, STREAM_SCHEMA, message_batch
from icestream.server.http.requests import write_stream

PATH = "/api/v1/topics/a/b/messages"
ARROW = "application/vnd.apache.arrow.stream"
OWN_SCHEMA = pa.schema([pa.field("x", pa.int64()), pa.field("name", pa.string())])


def post(http: Running, body: bytes, **query: Any) -> httpx.Response:
    return http.client.post(PATH, content=body, params=query, headers={"Content-Type": ARROW})


def get(http: Running, **query: Any) -> httpx.Response:
    answer = http.client.get(PATH, params=query, headers={"Accept": f"{ARROW}, */*"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == ARROW
    return answer


def table_of(answer: httpx.Response) -> pa.Table:
    with pa.ipc.open_stream(answer.content) as reader:
        return reader.read_all()


def compressed_stream(batch: pa.RecordBatch, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def test_a_stream_is_stored_as_one_batch(http: Running) -> None:
    batches = [message_batch([b"a", b"b"], [b"k", None]), message_batch([b"c"])]
    answer = post(http, write_stream(MESSAGE_SCHEMA, batches), producer="p", sequence=0, ack="disk")
    assert (answer.json()["base_offset"], answer.json()["count"]) == (0, 3)
    assert post(http, write_stream(MESSAGE_SCHEMA, batches), producer="p", sequence=0).json()["duplicate"] is True
    assert [message["payload"] for message in http.read("a/b")["messages"]] == ["a", "b", "c"]


def test_messages_are_given_as_arrow_to_whom_asks(http: Running) -> None:
    http.publish("a/b", *"abcde")
    answer = get(http, start=1, max_messages=3)
    table = table_of(answer)
    assert table.schema == STREAM_SCHEMA
    assert table["payload"].to_pylist() == [b"b", b"c", b"d"]
    assert table["offset"].to_pylist() == [1, 2, 3]
    assert (answer.headers["icestream-next-offset"], answer.headers["icestream-durable-end"]) == ("4", "5")


def test_an_empty_answer_still_has_its_schema(http: Running) -> None:
    http.publish("a/b", "x")
    table = table_of(get(http, start="latest"))
    assert (table.num_rows, table.schema) == (0, STREAM_SCHEMA)


def test_a_topics_own_columns_go_both_ways(http: Running) -> None:
    http.storage.topics.create("a/b", schema=OWN_SCHEMA)
    batch = pa.record_batch([[1, 2], ["one", None]], schema=OWN_SCHEMA)
    assert post(http, write_stream(OWN_SCHEMA, [batch])).json()["count"] == 2
    table = table_of(get(http))
    assert table.column_names == ["_offset", "_publish_time", "_producer", "_sequence", "x", "name"]
    assert table["name"].to_pylist() == ["one", None]


def test_a_stream_cannot_make_a_topic_with_columns_of_its_own(http: Running) -> None:
    batch = pa.record_batch([[1], ["one"]], schema=OWN_SCHEMA)
    error_of(post(http, write_stream(OWN_SCHEMA, [batch])), 404, "topic_not_found")
    http.publish("a/b", "x")
    error_of(post(http, write_stream(OWN_SCHEMA, [batch])), 400, "invalid_message")


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_are_refused_before_they_are_opened(lasting_http: Running, codec: str) -> None:
    bomb = compressed_stream(message_batch([bytes(1 << 20)]), codec)
    assert len(bomb) < 1 << 16
    assert "compressed" in error_of(post(lasting_http, bomb), 400, "invalid_message")["message"]


def test_dictionaries_are_refused(http: Running) -> None:
    batch = pa.record_batch({"payload": pa.array(["x"]).dictionary_encode()})
    assert "dictionary" in error_of(post(http, write_stream(batch.schema, [batch])), 400, "invalid_message")["message"]


@pytest.mark.parametrize("body", [b"", b"nonsense", b"\xff" * 100, write_stream(MESSAGE_SCHEMA, [])])
def test_what_holds_no_messages_is_refused(lasting_http: Running, body: bytes) -> None:
    error_of(post(lasting_http, body), 400, "invalid_message")


@pytest.mark.parametrize(("name", "value"), [("ack", "paper"), ("sequence", "x"), ("producer", "p"), ("colour", "red")])
def test_wrong_parameters_are_refused(lasting_http: Running, name: str, value: str) -> None:
    body = write_stream(MESSAGE_SCHEMA, [message_batch([b"x"])])
    error_of(post(lasting_http, body, **{name: value}), 400, "invalid_request")


def test_damaged_streams_are_refused_or_stored_but_never_a_fault(http: Running) -> None:
    sound = write_stream(MESSAGE_SCHEMA, [message_batch([b"abc", b"d" * 50], [None, b"k"], [[("a", "b")], None])] * 2)
    choose = random.Random(1)
    for _ in range(300):
        damaged = bytearray(sound)
        for _ in range(choose.choice((1, 2, 8))):
            damaged[choose.randrange(len(damaged))] = choose.choice((0, 1, 127, 128, 255))
        answer = post(http, bytes(damaged[: choose.randrange(len(damaged) // 2, len(damaged) + 1)]))
        assert answer.status_code in (200, 400), answer.text
    everything = http.read("a/b", max_messages=10_000)
    assert len(everything["messages"]) == everything["durable_end"]
