"""What several producers send together: one batch, one commit, one message with an answer for each."""

import threading
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.integration.flight.conftest import Running
from tests.integration.flight.plain import MESSAGES, PlainClient, Publishing, messages

from icestream.client import Client
from icestream.storage import Topic

TOPIC = "flight/parts"


@pytest.fixture
def stream(client: PlainClient) -> Publishing:
    return client.publishing()


def part(producer: str, sequence: int, count: int, number: int) -> dict[str, Any]:
    return {"producer": producer, "sequence": sequence, "count": count, "id": number}


def test_every_part_gets_its_own_offsets_in_one_answer(client: PlainClient, stream: Publishing) -> None:
    parts = [part("a", 0, 2, 10), part("b", 5, 1, 11), part("c", 0, 3, 12)]
    answer = stream.publish(messages(*(b"%d" % number for number in range(6))), topic=TOPIC, parts=parts)
    assert [(each["id"], each["base_offset"], each["count"]) for each in answer["answers"]] == [
        (10, 0, 2),
        (11, 2, 1),
        (12, 3, 3),
    ]
    table = client.read(topic=TOPIC)
    assert table["payload"].to_pylist() == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert table["producer"].to_pylist() == ["a", "a", "b", "c", "c", "c"]
    assert table["sequence"].to_pylist() == [0, 1, 5, 0, 1, 2]


def test_single_messages_keep_keys_and_attributes_wherever_they_stand(client: PlainClient, stream: Publishing) -> None:
    keys = [b"k", None, None, b"", b"l", None, None, None, b"m", None]
    attributes = [None, None, [("a", "b")], None, [], None, None, None, None, [("c", "d")]]
    payloads = [b"%d" % number for number in range(10)]
    columns = [
        pa.array(keys, pa.binary()),
        pa.array(attributes, MESSAGES.field("attributes").type),
        pa.array(payloads, pa.binary()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=MESSAGES)
    stream.publish(batch, topic=TOPIC, parts=[part(f"p{number}", 0, 1, number) for number in range(10)])
    table = client.read(topic=TOPIC)
    assert table["key"].to_pylist() == keys
    assert table["attributes"].to_pylist() == attributes
    assert table["payload"].to_pylist() == payloads


def test_a_part_that_is_refused_or_repeated_concerns_no_other(client: PlainClient, stream: Publishing) -> None:
    stream.publish(messages(b"first"), topic=TOPIC, producer="a", sequence=0)
    parts = [part("a", 0, 1, 1), part("a", 7, 1, 2), part("c", -1, 1, 3), part("b", 0, 1, 4)]
    answers = {each["id"]: each for each in stream.publish(messages(*[b"x"] * 4), topic=TOPIC, parts=parts)["answers"]}
    assert answers[1]["duplicate"] is True
    assert answers[2]["error"]["code"] == "sequence_gap"
    assert answers[3]["error"]["retryable"] is False
    assert answers[4]["base_offset"] == 1
    assert client.read(topic=TOPIC)["payload"].to_pylist() == [b"first", b"x"]


def test_a_part_that_the_broker_fails_on_concerns_no_other(stream: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    payload_of = Topic.payload

    def payload(topic: Topic, batch: Any, producer: str, *args: Any, **limits: Any) -> Any:
        if producer == "b":
            raise pa.ArrowMemoryError("no memory")
        return payload_of(topic, batch, producer, *args, **limits)

    monkeypatch.setattr(Topic, "payload", payload)
    parts = [part("a", 0, 1, 1), part("b", 0, 1, 2), part("c", 0, 1, 3)]
    answers = {each["id"]: each for each in stream.publish(messages(*[b"x"] * 3), topic=TOPIC, parts=parts)["answers"]}
    assert (answers[1]["base_offset"], answers[3]["base_offset"]) == (0, 1)
    assert "no memory" in answers[2]["error"]["message"]


@pytest.mark.parametrize(
    "parts", [[], [part("a", 0, 2, 0)], [part("a", 0, 4, 0)], [part("a", 0, -1, 0), part("b", 0, 4, 1)]]
)
def test_parts_that_are_not_the_batch_are_refused(stream: Publishing, parts: list[dict[str, Any]]) -> None:
    answer = stream.publish(messages(b"a", b"b", b"c"), topic=TOPIC, parts=parts)
    refused = answer["answers"] if parts else [answer]
    assert [each["id"] for each in refused] == ([each["id"] for each in parts] or [0])
    assert {each["error"]["code"] for each in refused} == {"invalid_request"}
    assert stream.publish(messages(b"a"), topic=TOPIC)["base_offset"] == 0


@pytest.mark.parametrize("ack", ["memory", "disk"])
def test_parts_are_acknowledged_at_every_level(running: Running, stream: Publishing, ack: str) -> None:
    parts = [part("a", 0, 1, 0), part("b", 0, 1, 1)]
    answer = stream.publish(messages(b"a", b"b"), topic=TOPIC, parts=parts, ack=ack)
    assert sorted(each["base_offset"] for each in answer["answers"]) == [0, 1]
    assert running.storage.topic(TOPIC).log.wait_past(1, timeout=60)


def test_producers_of_one_client_that_wait_for_each_message_share_commits(running: Running) -> None:
    producers, messages_each = 16, 50
    log = running.storage.topic(TOPIC, create=True).log
    commits: list[int] = []
    log.listeners.add(lambda: commits.append(log.durable_end))
    with Client(running.address) as client:

        def work(number: int) -> None:
            with client.producer(TOPIC, name=f"producer-{number}") as producer:
                for place in range(messages_each):
                    producer.send(b"%d" % place, key=b"%d" % number).result()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(producers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        table = client.read(TOPIC)
    assert table.num_rows == producers * messages_each
    for number in range(producers):
        mine = table.filter(pc.equal(table["producer"], f"producer-{number}"))
        assert mine["payload"].to_pylist() == [b"%d" % place for place in range(messages_each)]
        assert set(mine["key"].to_pylist()) == {b"%d" % number}
    assert len(commits) < producers * messages_each
