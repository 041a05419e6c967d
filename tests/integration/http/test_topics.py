"""Creating, listing, describing, changing and deleting topics."""

from pathlib import Path

import pyarrow as pa
import pytest
from tests.integration.http.conftest import OpenDoor, Running, error_of
from tests.integration.http.exact import exact

from icestream.model.messages import encode_schema
from icestream.protocol.admin import TopicDescription
from icestream.server.http.models import TopicPage

TOPICS = "/api/v1/topics"


def test_a_created_topic_is_described_with_its_place(http: Running) -> None:
    answer = http.client.post(TOPICS, json={"topic": "shop/orders", "ack": "memory", "retention_minutes": 5})
    assert answer.status_code == 201
    assert answer.headers["location"] == "/api/v1/topics/shop/orders"
    topic = exact(TopicDescription, answer.json())
    assert (topic.topic, topic.ack, topic.retention_minutes, topic.durable_end) == ("shop/orders", "memory", 5, 0)
    assert http.client.get(answer.headers["location"]).json() == answer.json()


def test_a_bare_name_goes_to_the_default_namespace(http: Running) -> None:
    assert http.client.post(TOPICS, json={"topic": "orders"}).json()["topic"] == "default/orders"


def test_a_topic_can_have_columns_of_its_own(http: Running) -> None:
    schema = encode_schema(pa.schema([("x", pa.int64())]))
    answer = http.client.post(TOPICS, json={"topic": "a/b", "schema": schema})
    assert answer.json()["schema"] == schema


@pytest.mark.parametrize("schema", ["", "AAAA", "!", "é"])
def test_what_is_no_arrow_schema_is_refused(lasting_http: Running, schema: str) -> None:
    error_of(lasting_http.client.post(TOPICS, json={"topic": "a/b", "schema": schema}), 400, "invalid_request")


def test_a_topic_that_exists_is_a_conflict_unless_that_is_fine(http: Running) -> None:
    created = http.client.post(TOPICS, json={"topic": "a/b"}).json()
    error_of(http.client.post(TOPICS, json={"topic": "a/b"}), 409, "topic_exists")
    again = http.client.post(TOPICS, json={"topic": "a/b", "if_not_exists": True})
    assert (again.status_code, again.json()) == (200, created)


@pytest.mark.parametrize("name", ["", "a/b/c", "../x", ".hidden", "a b", "ü", "x" * 101, "/", "a/\u0000"])
def test_an_illegal_name_is_refused(lasting_http: Running, name: str) -> None:
    error_of(lasting_http.client.post(TOPICS, json={"topic": name}), 400, "invalid_name")


def test_one_topic_too_many_is_refused_for_good(open_door: OpenDoor) -> None:
    http = open_door(server={"max_topics": 1})
    http.client.post(TOPICS, json={"topic": "a/b"})
    answer = http.client.post(TOPICS, json={"topic": "a/c"})
    assert error_of(answer, 429, "limit_reached")["retryable"] is False
    assert "retry-after" not in answer.headers


def test_topics_are_listed_by_name_in_pages(http: Running) -> None:
    for name in ("b/x", "a/z", "a/y", "a/x"):
        http.client.post(TOPICS, json={"topic": name})
    found, after = [], ""
    while True:
        page = exact(TopicPage, http.client.get(TOPICS, params={"limit": 2, "after": after}).json())
        found += [topic.topic for topic in page.topics]
        if page.next_after is None:
            break
        after = page.next_after
    assert found == ["a/x", "a/y", "a/z", "b/x"]
    matching = exact(TopicPage, http.client.get(TOPICS, params={"prefix": "a/"}).json())
    assert [topic.topic for topic in matching.topics] == ["a/x", "a/y", "a/z"]


def test_listing_opens_no_log(http: Running) -> None:
    http.storage.topics.create("a/b")
    (topic,) = http.client.get(TOPICS).json()["topics"]
    assert (topic["start_offset"], topic["durable_end"]) == (None, None)
    assert http.storage.topics.opened() == []


def test_only_the_given_fields_change(http: Running) -> None:
    http.client.post(TOPICS, json={"topic": "a/b", "retention_minutes": 5, "retention_mb": 7})
    changed = http.client.patch(f"{TOPICS}/a/b", json={"ack": "memory", "retention_mb": None}).json()
    assert (changed["ack"], changed["retention_minutes"], changed["retention_mb"]) == ("memory", 5, None)
    assert http.client.patch(f"{TOPICS}/a/b", json={}).json() == changed


@pytest.mark.parametrize(
    "body", [{"ack": None}, {"ack": "paper"}, {"retention_mb": 0}, {"retention_mb": "5"}, {"topic": "a/c"}]
)
def test_an_impossible_change_is_refused(lasting_http: Running, body: dict[str, object]) -> None:
    lasting_http.client.post(TOPICS, json={"topic": "a/b"})
    error = error_of(lasting_http.client.patch(f"{TOPICS}/a/b", json=body), 400, "invalid_request")
    assert next(iter(body)) in error["message"]


def test_a_deleted_topic_is_gone_with_its_messages(http: Running) -> None:
    http.publish("a/b", "x")
    assert http.client.delete(f"{TOPICS}/a/b").status_code == 204
    for answer in (
        http.client.get(f"{TOPICS}/a/b"),
        http.client.delete(f"{TOPICS}/a/b"),
        http.client.patch(f"{TOPICS}/a/b", json={}),
        http.client.get(f"{TOPICS}/a/b/messages"),
    ):
        error_of(answer, 404, "topic_not_found")
    assert http.publish("a/b", "y")["base_offset"] == 0


def test_damage_is_told_and_hides_no_other_topic(open_door: OpenDoor, tmp_path: Path) -> None:
    http = open_door()
    http.publish("a/bad", "x" * 1000)
    http.publish("a/good", "x")
    http.storage.close()
    (segment,) = (path for path in (tmp_path / "data" / "wal" / "a" / "bad").iterdir() if path.suffix == ".log")
    data = bytearray(segment.read_bytes())
    data[600] ^= 1
    segment.write_bytes(data)
    http.storage.open()
    assert error_of(http.client.get(f"{TOPICS}/a/bad"), 500, "damaged")["remedy"]
    assert [topic["topic"] for topic in http.client.get(TOPICS).json()["topics"]] == ["a/bad", "a/good"]
    assert http.read("a/good")["next_offset"] == 1
