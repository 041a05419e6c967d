"""The actions for the pipeline against `docs/protocol.md`, with a plain Flight client."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.flight.conftest import Running
from tests.integration.flight.plain import PlainClient, failure, messages

ENTRY = {
    "topic",
    "stream_id",
    "epoch",
    "schema",
    "partition_by",
    "sort_by",
    "start_offset",
    "durable_end",
    "bytes",
    "awaited_end",
    "error",
    "format",
    "in_table_below",
}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "data", wal={"index_interval_bytes": 4096, "max_file_size": 1 << 20})
    yield running
    running.close()


@pytest.fixture
def client(running: Running) -> PlainClient:
    return running.client


def publish(client: PlainClient, topic: str, count: int = 1, size: int = 10) -> None:
    client.publishing().publish(messages(*[bytes(size)] * count), topic=topic)


def ends(answer: dict[str, Any]) -> dict[str, int]:
    return {entry["topic"]: entry["durable_end"] for entry in answer["topics"]}


def test_without_a_mark_all_topics_are_told_of(client: PlainClient) -> None:
    client.action("create_topic", topic="a/empty", partition_by=["bucket(4, key)"])
    client.action("create_topic", topic="a/full")
    publish(client, "a/full", 3)
    answer = client.action("backlog")
    assert answer["complete"] is True
    assert ends(answer) == {"a/empty": 0, "a/full": 3}
    assert all(set(entry) == ENTRY for entry in answer["topics"])
    assert answer["topics"][0]["partition_by"] == ["bucket(4, key)"]
    assert answer["topics"][1]["bytes"] > 30
    described = client.action("describe_topic", topic="a/full")
    assert {name: answer["topics"][1][name] for name in ("stream_id", "epoch", "schema", "start_offset")} == {
        name: described[name] for name in ("stream_id", "epoch", "schema", "start_offset")
    }


def test_with_a_mark_only_topics_that_moved_are_told_of(client: PlainClient) -> None:
    for name in ("a/one", "a/two"):
        client.action("create_topic", topic=name)
    mark = client.action("backlog")["mark"]
    assert client.action("backlog", mark=mark)["topics"] == []
    publish(client, "a/two", 5)
    answer = client.action("backlog", mark=mark)
    assert ends(answer) == {"a/two": 5}
    assert client.action("backlog", mark=answer["mark"])["topics"] == []
    assert ends(client.action("backlog", mark="another-broker's")) == {"a/one": 0, "a/two": 5}


def test_a_pattern_chooses_topics(client: PlainClient) -> None:
    for name in ("web/clicks", "web/views", "app/clicks"):
        client.action("create_topic", topic=name)
    assert set(ends(client.action("backlog", topics="web/*"))) == {"web/clicks", "web/views"}
    assert set(ends(client.action("backlog", topics="*/clicks"))) == {"web/clicks", "app/clicks"}


def test_a_question_that_waits_is_answered_when_a_topic_moves(running: Running, client: PlainClient) -> None:
    client.action("create_topic", topic="a/one")
    mark = client.action("backlog")["mark"]
    answers: list[dict[str, Any]] = []
    other = running.connect()
    asking = threading.Thread(target=lambda: answers.append(other.action("backlog", mark=mark, wait_ms=10_000)))
    asking.start()
    publish(client, "a/one")
    asking.join()
    assert ends(answers[0]) == {"a/one": 1}


def test_a_new_topic_ends_the_wait_too(running: Running, client: PlainClient) -> None:
    mark = client.action("backlog")["mark"]
    answers: list[dict[str, Any]] = []
    other = running.connect()
    asking = threading.Thread(target=lambda: answers.append(other.action("backlog", mark=mark, wait_ms=10_000)))
    asking.start()
    publish(client, "a/new", 2)
    asking.join()
    assert set(ends(answers[0])) == {"a/new"}


def test_somebody_who_waits_for_the_table_ends_the_wait_and_is_told_of(running: Running, client: PlainClient) -> None:
    publish(client, "a/one", 3)
    publish(client, "a/other")
    mark = client.action("backlog")["mark"]
    other = running.connect()
    fields: dict[str, Any] = {"topic": "a/one", "offset": 1, "wait_ms": 10_000}
    waiting = threading.Thread(target=lambda: failure(lambda: other.action("wait_committed", **fields)))
    waiting.start()
    answer = client.action("backlog", mark=mark, wait_ms=10_000)
    assert [(entry["topic"], entry["awaited_end"]) for entry in answer["topics"]] == [("a/one", 2)]
    client.action("delete_topic", topic="a/one")
    waiting.join()
    patient = client.action("wait_committed", topic="a/other", offset=0, wait_ms=1, hurry=False)
    asked = client.action("wait_committed", topic="a/other", offset=0)
    assert (patient["committed"], asked["committed"]) == (False, False)
    assert client.action("backlog", mark=answer["mark"])["topics"] == []


def test_a_changed_schema_and_a_topic_made_again_count_as_moves(client: PlainClient) -> None:
    first = client.action("create_topic", topic="a/one")
    mark = client.action("backlog")["mark"]
    client.action("delete_topic", topic="a/one")
    second = client.action("create_topic", topic="a/one")
    answer = client.action("backlog", mark=mark, wait_ms=10_000)
    assert [entry["stream_id"] for entry in answer["topics"]] == [second["stream_id"]] != [first["stream_id"]]


def test_a_range_is_cut_into_pieces_of_about_equal_bytes(client: PlainClient) -> None:
    for _ in range(100):
        publish(client, "a/even", 10, 5_000)  # over several segments
    whole = client.action("backlog")["topics"][0]["bytes"]
    pieces = client.action("cut_range", topic="a/even", start=0, end=1000, range_bytes=whole // 4)["ends"]
    assert pieces[-1] == 1000
    assert len(pieces) in (4, 5)
    assert all(abs(end - 250 * (number + 1)) <= 40 for number, end in enumerate(pieces[:3]))


def test_cutting_follows_the_bytes_not_the_count(client: PlainClient) -> None:
    for _ in range(10):
        publish(client, "a/skewed", 1000, 10)
    for _ in range(10):
        publish(client, "a/skewed", 1, 100_000)
    first, *_ = client.action("cut_range", topic="a/skewed", start=0, end=10_010, range_bytes=600_000)["ends"]
    assert first > 10_000
    pieces = client.action("cut_range", topic="a/skewed", start=10_000, end=10_010, range_bytes=250_000)["ends"]
    assert len(pieces) in (3, 4, 5)
    limited = client.action("cut_range", topic="a/skewed", start=0, end=10_010, range_bytes=1, max_ranges=3)["ends"]
    assert len(limited) == 3
    assert limited == sorted(set(limited))


@pytest.mark.parametrize(
    "fields",
    [
        {"start": 0, "end": 99, "range_bytes": 10},
        {"start": -1, "end": 1, "range_bytes": 10},
        {"start": 0, "end": 1, "range_bytes": 0},
        {"start": 0, "end": 1, "range_bytes": 10, "max_ranges": 0},
        {"start": 0, "end": 1},
        {"start": "0", "end": 1, "range_bytes": 10},
    ],
)
def test_a_range_that_cannot_be_cut_is_refused(client: PlainClient, fields: dict[str, Any]) -> None:
    publish(client, "a/one")
    assert failure(client.action, "cut_range", topic="a/one", **fields)["retryable"] is False


def test_reports_are_added_up_and_the_last_of_each_topic_is_kept(client: PlainClient) -> None:
    client.action("create_topic", topic="a/one")
    for number in (1, 2):
        report: dict[str, Any] = {
            "pass": {"passes": 1, "pass_seconds": 0.5},
            "topics": [
                {"topic": "a/one", "messages": number, "committed_offset": number, "error": None},
                {"topic": "a/gone", "messages": 10, "failures": 1, "error": "x" * 5000},
            ],
        }
        client.action("pipeline_report", **report)
    found = client.action("stats")["pipeline"]
    assert (found["passes"], found["pass_seconds"], found["messages"], found["failures"]) == (2, 1.0, 23, 2)
    assert set(found["topics"]) == {"a/one"}
    assert found["topics"]["a/one"]["committed_offset"] == 2
    client.action("delete_topic", topic="a/one")
    client.action("pipeline_report", topics=[])
    assert client.action("stats")["pipeline"]["topics"] == {}


@pytest.mark.parametrize(
    "topics",
    [
        ["text"],
        [{"messages": 1}],
        [{"topic": "a/b", "messages": "many"}],
        [{"topic": "a/b", "messages": None}],
        [{"topic": "a/b", "messages": True}],
        [{"topic": "a/b", "unknown": 1}],
        [{"topic": "../b"}],
    ],
)
def test_a_report_that_could_not_be_added_up_is_refused(client: PlainClient, topics: list[Any]) -> None:
    assert failure(client.action, "pipeline_report", topics=topics)["code"] in {"invalid_request", "invalid_name"}


def test_a_hint_of_another_stream_is_passed_over(client: PlainClient) -> None:
    client.action("create_topic", topic="a/one")
    assert client.action("committed", topic="a/one", stream_id="other") == {}
    assert failure(client.action, "committed", topic="a/one")["code"] == "invalid_request"
    assert failure(client.action, "committed", topic="a/none", stream_id="x")["code"] == ("topic_not_found")
