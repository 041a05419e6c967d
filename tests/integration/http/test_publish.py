"""Publishing JSON."""

import base64
import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.http.conftest import PATIENCE_SECONDS, OpenDoor, Running, error_of
from tests.integration.http.exact import exact

from icestream.model.offsets import StartPosition
from icestream.server.http.models import PublishReceipt
from icestream.table import Tables, TableSpec

PATH = "/api/v1/topics/a/b/messages"


def test_messages_get_the_offsets_of_the_receipt(http: Running) -> None:
    assert http.publish("a/b", "one", "two")["base_offset"] == 0
    receipt = exact(PublishReceipt, http.publish("a/b", "three"))
    assert (receipt.base_offset, receipt.count, receipt.duplicate) == (2, 1, False)
    assert [message["payload"] for message in http.read("a/b")["messages"]] == ["one", "two", "three"]


def test_text_and_bytes_come_back_as_they_were(http: Running) -> None:
    message = {
        "payload_base64": base64.b64encode(b"\xff\x00").decode(),
        "key": "ключ",
        "attributes": {"source": "web", "empty": ""},
    }
    http.client.post(PATH, json={"messages": [message, {"payload": "", "key_base64": "/w=="}]})
    first, second = http.read("a/b")["messages"]
    assert {name: first[name] for name in message} == message
    assert (second["payload"], second["key_base64"], second["attributes"]) == ("", "/w==", {})


def test_a_repeated_sequence_is_recognised_and_a_hole_refused(http: Running) -> None:
    first = http.publish("a/b", "one", "two", producer="p", sequence=0)
    again = http.publish("a/b", "one", "two", producer="p", sequence=0)
    assert again == {**first, "duplicate": True}
    body = {"messages": [{"payload": "x"}], "producer": "p", "sequence": 5}
    error_of(http.client.post(PATH, json=body), 409, "sequence_gap")
    assert http.publish("a/b", "three", producer="p", sequence=2)["base_offset"] == 2


@pytest.mark.parametrize("ack", ["memory", "disk"])
def test_every_level_of_acknowledgement_is_taken(http: Running, ack: str) -> None:
    assert http.publish("a/b", "x", ack=ack)["base_offset"] == 0
    assert len(http.read("a/b", wait_ms=30_000)["messages"]) == 1


def test_an_acknowledgement_of_the_table_names_its_snapshot(http: Running) -> None:
    topic = http.storage.topics.create("a/b")
    assert exact(PublishReceipt, http.publish("a/b", "one")).snapshot_id is None
    record = topic.record
    with ThreadPoolExecutor(1) as threads:
        publishing = threads.submit(http.publish, "a/b", "two", ack="table")
        assert topic.log.wait_past(1, PATIENCE_SECONDS)
        tables = Tables(http.storage.settings)
        table = tables.open(TableSpec(topic.name, record.stream_id, record.epoch, topic.stream_schema))
        batches = topic.read(topic.reader(StartPosition.from_json(0)), end=2)
        files = table.writer().write(batches, max_memory_bytes=1 << 24)
        snapshot_id = table.commit(files, start=0, end=2, epoch=record.epoch).snapshot_id
        tables.close()
        http.storage.table_watch.hint(topic.name)
        receipt = exact(PublishReceipt, publishing.result())
    assert (receipt.base_offset, receipt.snapshot_id) == (1, snapshot_id)


def test_a_missing_topic_is_made_only_where_that_is_allowed(open_door: OpenDoor) -> None:
    http = open_door(topics={"auto_create": False})
    error_of(http.client.post(PATH, json={"messages": [{"payload": "x"}]}), 404, "topic_not_found")


def test_a_refused_request_makes_no_topic(http: Running) -> None:
    error_of(http.client.post(PATH, json={"messages": [{}]}), 400, "invalid_message")
    assert len(http.storage.topics) == 0


def test_a_topic_with_columns_of_its_own_takes_no_json(http: Running) -> None:
    http.storage.topics.create("a/b", schema=pa.schema([("x", pa.int64())]))
    error_of(http.client.post(PATH, json={"messages": [{"payload": "x"}]}), 400, "invalid_message")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{}]}, "messages.0"),
        ({"messages": [{"payload": None}]}, "messages.0"),
        ({"messages": [{"payload": 5}]}, "messages.0.payload"),
        ({"messages": [{"payload": "x"}, {"payload": "x", "payload_base64": "eA=="}]}, "messages.1"),
        ({"messages": [{"payload": "x", "key": "x", "key_base64": "eA=="}]}, "messages.0"),
        ({"messages": [{"payload_base64": "!"}]}, "messages.0.payload_base64"),
        ({"messages": [{"payload_base64": "eA"}]}, "messages.0.payload_base64"),
        ({"messages": [{"payload_base64": "é"}]}, "messages.0.payload_base64"),
        ({"messages": [{"payload": "x", "attributes": {"a": 1}}]}, "messages.0.attributes.a"),
        ({"messages": [{"payload": "x", "colour": "red"}]}, "messages.0.colour"),
        ({"messages": [{"payload": "x"}], "sequence": 0}, "producer"),
        ({"messages": [{"payload": "x"}], "producer": "p"}, "sequence"),
        ({"messages": [{"payload": "x"}], "producer": "", "sequence": 0}, "producer"),
        ({"messages": [{"payload": "x"}], "producer": "p", "sequence": -1}, "sequence"),
        ({"messages": [{"payload": "x"}], "producer": "p", "sequence": 1 << 62}, "sequence"),
        ({"messages": [{"payload": "x"}], "producer": "p", "sequence": True}, "sequence"),
        ({"messages": [{"payload": "x"}], "ack": "paper"}, "ack"),
        ({"messages": [{"payload": "x"}], "acks": "disk"}, "acks"),
        ([], "object"),
    ],
)
def test_a_wrong_body_is_refused_and_the_field_named(lasting_http: Running, body: Any, named: str) -> None:
    answer = lasting_http.client.post(PATH, json=body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]


@pytest.mark.parametrize("producer", ["\n", "x" * 201])
def test_a_wrong_producer_name_is_refused(lasting_http: Running, producer: str) -> None:
    body = {"messages": [{"payload": "x"}], "producer": producer, "sequence": 0}
    error_of(lasting_http.client.post(PATH, json=body), 400, "invalid_name")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"messages": NaN}',
        b'{"messages": [{"payload": NaN}]}',
        b'{"messages": [{"payload": "\xff"}]}',
        b'{"messages": [{"payload": "\\ud800"}]}',
        b'{"messages": [{"payload": "x", "sequence": 1e999}]}',
        b'{"messages": ' + b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"sequence": ' + b"9" * 100_000 + b"}",
        b'{"messages": [' + b"{}," * 1_100_000 + b"{}]}",
    ],
    ids=range(12),
)
def test_hostile_json_is_refused(lasting_http: Running, text: bytes) -> None:
    error_of(lasting_http.post_json(PATH, text), 400, "invalid_request")


def test_text_with_many_commas_is_not_taken_for_many_values(http: Running) -> None:
    payload = ',{["\\' * 400_000
    http.publish("a/b", payload)
    (message,) = http.read("a/b")["messages"]
    assert message["payload"] == payload


def test_json_in_the_query_is_refused_with_a_json_body(http: Running) -> None:
    answer = http.client.post(PATH, params={"ack": "disk"}, json={"messages": [{"payload": "x"}]})
    assert "ack" in error_of(answer, 400, "invalid_request")["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_type_is_refused(lasting_http: Running, kind: str) -> None:
    content = json.dumps({"messages": [{"payload": "x"}]}).encode()
    answer = lasting_http.client.post(PATH, content=content, headers={"Content-Type": kind} if kind else {})
    assert "application/json" in error_of(answer, 415, "unsupported_media_type")["remedy"]


def test_a_failing_disk_is_retryable_and_the_retry_succeeds(http: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    http.publish("a/b", "one", producer="p", sequence=0)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "injected")

    body = {"messages": [{"payload": "two"}], "producer": "p", "sequence": 1}
    with monkeypatch.context() as failing:
        failing.setattr(os, "pwritev", fail)
        answer = http.client.post(PATH, json=body)
    assert error_of(answer, 503, "log_unavailable")["retryable"] is True
    assert answer.headers["retry-after"] == "1"
    assert http.publish("a/b", "two", producer="p", sequence=1)["base_offset"] == 1


def test_a_closed_storage_is_unavailable(http: Running) -> None:
    http.storage.close()
    error_of(http.client.post(PATH, json={"messages": [{"payload": "x"}]}), 503, "closed")
