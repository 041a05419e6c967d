"""DoAction against `docs/protocol.md`, with a plain Flight client."""

import base64
import json
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from tests.integration.flight.conftest import VERSION, OpenDoor
from tests.integration.flight.plain import MESSAGES, PlainClient, encoded, failure, messages

TOPIC = "flight/topic"
DESCRIPTION = {
    "topic",
    "stream_id",
    "epoch",
    "ack",
    "created_us",
    "retention_minutes",
    "retention_mb",
    "schema",
    "start_offset",
    "durable_end",
    "partition_by",
    "sort_by",
    "committed_offset",
    "quarantined",
    "storage",
    "uploaded_offset",
    "cloud_start_offset",
    "format",
    "parquet_offset",
}
ACTIONS = {
    "create_topic",
    "list_topics",
    "describe_topic",
    "update_topic",
    "reset_clock",
    "delete_topic",
    "open_producer",
    "stats",
    "tenant_stats",
    "ping",
    "backlog",
    "cut_range",
    "committed",
    "wait_committed",
    "pipeline_report",
    "list_subscriptions",
    "create_subscription",
    "describe_subscription",
    "seek_subscription",
    "delete_subscription",
    "flush_topic",
    "recover_topic",
    "recoverable_topics",
    "cloud_objects",
}


def test_the_actions_of_the_page_are_listed(client: PlainClient) -> None:
    found = {action.type: action.description for action in client.flight.list_actions()}
    assert found.keys() == ACTIONS
    assert all(found.values())


def test_a_topic_is_made_described_changed_and_deleted(client: PlainClient) -> None:
    made = client.action("create_topic", topic=TOPIC, ack="memory", retention_minutes=5, retention_mb=7)
    assert set(made) == DESCRIPTION
    assert made == client.action("describe_topic", topic=TOPIC)
    assert UUID(made["stream_id"])
    assert (made["ack"], made["retention_minutes"], made["retention_mb"], made["schema"]) == ("memory", 5, 7, None)
    assert (made["start_offset"], made["durable_end"]) == (0, 0)
    changed = client.action("update_topic", topic=TOPIC, ack="disk", retention_mb=None)
    assert changed == made | {"ack": "disk", "retention_mb": None}
    client.publishing().publish(messages(b"a", b"b"), topic=TOPIC)
    assert client.action("describe_topic", topic=TOPIC)["durable_end"] == 2
    assert client.action("delete_topic", topic=TOPIC) == {}
    assert failure(client.action, "describe_topic", topic=TOPIC)["code"] == "topic_not_found"


def test_a_topic_made_again_is_another_stream(client: PlainClient) -> None:
    first = client.action("create_topic", topic=TOPIC)
    client.publishing().publish(messages(b"a"), topic=TOPIC, producer="p", sequence=0)
    client.action("delete_topic", topic=TOPIC)
    second = client.action("create_topic", topic=TOPIC)
    assert second["stream_id"] != first["stream_id"]
    assert (second["durable_end"], client.payloads(TOPIC)) == (0, [])
    answer = client.publishing().publish(messages(b"b"), topic=TOPIC, producer="p", sequence=0)
    assert answer["base_offset"] == 0
    assert "duplicate" not in answer


def test_a_topic_that_exists_is_refused_unless_that_is_fine(client: PlainClient) -> None:
    made = client.action("create_topic", topic=TOPIC)
    assert failure(client.action, "create_topic", topic=TOPIC)["code"] == "topic_exists"
    assert client.action("create_topic", topic=TOPIC, if_not_exists=True) == made


def test_topics_are_listed_by_prefix_in_order_of_name(client: PlainClient) -> None:
    for name in ("b/x", "a/z", "a/y"):
        client.action("create_topic", topic=name)

    def names(**fields: Any) -> list[str]:
        return [found["topic"] for found in client.action("list_topics", **fields)["topics"]]

    assert names() == ["a/y", "a/z", "b/x"]
    assert names(prefix="a/") == ["a/y", "a/z"]
    assert names(prefix="c") == []
    assert all(set(found) == DESCRIPTION for found in client.action("list_topics")["topics"])


def test_a_bare_name_is_one_of_the_default_namespace(client: PlainClient) -> None:
    assert client.action("create_topic", topic="bare")["topic"] == "default/bare"


def test_opening_a_producer_tells_where_it_goes_on_and_what_may_be_sent(open_door: OpenDoor) -> None:
    client = open_door(server={"max_message_bytes": 1000, "max_batch_bytes": 5000}).client
    opened = client.action("open_producer", topic=TOPIC, producer="p")
    assert opened.keys() == {"next_sequence", "schema", "max_message_bytes", "max_batch_bytes"}
    assert (opened["next_sequence"], opened["max_message_bytes"], opened["max_batch_bytes"]) == (0, 1000, 5000)
    assert pa.ipc.read_schema(pa.py_buffer(base64.b64decode(opened["schema"]))).equals(MESSAGES)
    client.publishing().publish(messages(b"a", b"b"), topic=TOPIC, producer="p", sequence=0)
    assert client.action("open_producer", topic=TOPIC, producer="p")["next_sequence"] == 2
    assert client.action("open_producer", topic=TOPIC, producer="q")["next_sequence"] == 0


def test_opening_a_producer_with_a_schema_makes_a_topic_of_it(client: PlainClient) -> None:
    schema = pa.schema([pa.field("x", pa.int64())])
    opened = client.action("open_producer", topic=TOPIC, producer="p", schema=encoded(schema))
    assert opened["schema"] == encoded(schema)
    assert client.action("describe_topic", topic=TOPIC)["schema"] == encoded(schema)


def test_figures_of_one_topic_or_of_all_and_of_the_broker(client: PlainClient) -> None:
    client.publishing().publish(messages(b"a", b"b"), topic=TOPIC)
    client.action("create_topic", topic="flight/other")
    one = client.action("stats", topic=TOPIC)
    assert [found["topic"] for found in one["topics"]] == [TOPIC]
    assert (one["topics"][0]["message_count"], one["topics"][0]["durable_end"]) == (2, 2)
    every = client.action("stats")
    assert [found["topic"] for found in every["topics"]] == ["flight/other", TOPIC]
    assert (every["broker"]["version"], every["broker"]["topics"]) == (VERSION, 2)


def test_a_ping_is_answered_with_version_and_broker_id(client: PlainClient) -> None:
    answer = client.action("ping")
    assert answer["version"] == VERSION
    assert answer.keys() == {"version", "broker_id", "socket"}
    assert client.action("ping", b"") == answer


BAD = [
    ("create_topic", {}, "invalid_request"),
    ("create_topic", {"topic": 5}, "invalid_request"),
    ("create_topic", {"topic": "a/b/c"}, "invalid_name"),
    ("create_topic", {"topic": "a/-b"}, "invalid_name"),
    ("create_topic", {"topic": TOPIC, "ack": "sure"}, "invalid_request"),
    ("create_topic", {"topic": TOPIC, "ack": 1}, "invalid_request"),
    ("create_topic", {"topic": TOPIC, "retention_mb": 0}, "invalid_request"),
    ("create_topic", {"topic": TOPIC, "retention_mb": True}, "invalid_request"),
    ("create_topic", {"topic": TOPIC, "retention_minutes": 1.5}, "invalid_request"),
    ("create_topic", {"topic": TOPIC, "retention_minutes": "1"}, "invalid_request"),
    ("create_topic", {"topic": TOPIC, "schema": "!"}, "invalid_request"),
    ("create_topic", {"topic": TOPIC, "schema": "AAAA"}, "invalid_request"),
    ("create_topic", {"topic": TOPIC, "schema": encoded(pa.schema([]))}, "invalid_request"),
    ("create_topic", {"topic": TOPIC, "schema": encoded(pa.schema([("_offset", "i8")]))}, "invalid_request"),
    ("create_topic", {"topic": TOPIC, "schema": encoded(pa.schema([("a", "i8"), ("a", "i8")]))}, "invalid_request"),
    ("create_topic", {"topic": TOPIC, "if_not_exists": "yes"}, "invalid_request"),
    ("create_topic", {"topic": TOPIC, "partitions": 3}, "invalid_request"),
    ("list_topics", {"prefix": 1}, "invalid_request"),
    ("list_topics", {"topic": TOPIC}, "invalid_request"),
    ("describe_topic", {"topic": "no/such"}, "topic_not_found"),
    ("describe_topic", {"topic": TOPIC, "\ud800": 1}, "invalid_request"),
    ("update_topic", {"topic": "no/such", "ack": "disk"}, "topic_not_found"),
    ("update_topic", {"topic": "known/topic", "ack": "sure"}, "invalid_request"),
    ("update_topic", {"topic": "known/topic", "ack": None}, "invalid_request"),
    ("update_topic", {"topic": "known/topic", "retention_mb": -1}, "invalid_request"),
    ("update_topic", {"topic": "known/topic", "schema": "AAAA"}, "invalid_request"),
    ("delete_topic", {"topic": "no/such"}, "topic_not_found"),
    ("delete_topic", {}, "invalid_request"),
    ("open_producer", {"topic": TOPIC}, "invalid_request"),
    ("open_producer", {"topic": TOPIC, "producer": ""}, "invalid_name"),
    ("open_producer", {"topic": TOPIC, "producer": "\x00"}, "invalid_name"),
    ("open_producer", {"topic": TOPIC, "producer": "p", "schema": 7}, "invalid_request"),
    ("stats", {"topic": "no/such"}, "topic_not_found"),
    ("ping", {"topic": TOPIC}, "invalid_request"),
    ("make_coffee", {}, "invalid_request"),
    ("", {}, "invalid_request"),
]


@pytest.mark.parametrize(("action", "fields", "code"), BAD, ids=repr)
def test_bad_input_is_refused_with_a_typed_error_and_changes_nothing(
    client: PlainClient, action: str, fields: dict[str, Any], code: str
) -> None:
    known = client.action("create_topic", topic="known/topic")
    error = failure(client.action, action, **fields)
    assert error["code"] == code, error
    assert not error["retryable"]
    assert client.action("list_topics")["topics"] == [known]


@pytest.mark.parametrize("body", [b"[]", b"null", b"\xff", b"{", b'{"topic": NaN}', b'"x"', b"{}{}"])
@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_a_body_that_is_no_such_object_is_refused(client: PlainClient, action: str, body: bytes) -> None:
    assert failure(client.action, action, body)["code"] == "invalid_request"


def test_an_action_answers_with_one_object_and_nothing_needs_none(client: PlainClient) -> None:
    results = list(client.flight.do_action(fl.Action("list_topics", b"")))
    assert [json.loads(result.body.to_pybytes()) for result in results] == [{"topics": []}]


def test_publish_times_that_are_ahead_follow_the_clock_again(open_door: OpenDoor) -> None:
    running = open_door()
    client = running.client
    client.action("create_topic", topic=TOPIC)
    assert failure(client.action, "reset_clock", topic=TOPIC)["code"] == "invalid_request"
    log = running.storage.topic(TOPIC).log
    clock = log.context.clock
    object.__setattr__(log.context, "clock", lambda: clock() + 3_600_000_000)
    client.publishing().publish(messages(b"x"), topic=TOPIC)
    object.__setattr__(log.context, "clock", clock)
    (figures,) = client.action("stats", topic=TOPIC)["topics"]
    assert figures["publish_time_ahead_seconds"] > 3000
    found = client.action("reset_clock", topic=TOPIC)
    assert (found["topic"], found["offset"]) == (TOPIC, 1)
    (figures,) = client.action("stats", topic=TOPIC)["topics"]
    assert figures["publish_time_ahead_seconds"] is None
