"""Reading JSON: where to start, and how much comes."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from tests.integration.http.conftest import Running, error_of
from tests.integration.http.exact import exact

from icestream.server.http.models import ReadMessages

PATH = "/api/v1/topics/a/b/messages"


def payloads(answer: dict[str, object]) -> list[str | None]:
    return [message.payload or None for message in exact(ReadMessages, answer).messages]


def test_messages_come_in_order_and_next_offset_goes_on(http: Running) -> None:
    http.publish("a/b", *"abc")
    http.publish("a/b", *"de")
    found, offset = [], 0
    while page := http.read("a/b", start=offset, max_messages=2)["messages"]:
        found += page
        offset = page[-1]["offset"] + 1
    assert [message["payload"] for message in found] == list("abcde")
    assert [message["offset"] for message in found] == [0, 1, 2, 3, 4]
    end = http.read("a/b", start=offset)
    assert (end["messages"], end["next_offset"], end["durable_end"]) == ([], 5, 5)


def test_start_can_be_earliest_latest_or_an_offset(http: Running) -> None:
    http.publish("a/b", *"abc")
    assert payloads(http.read("a/b")) == list("abc")
    assert payloads(http.read("a/b", start="earliest")) == list("abc")
    assert payloads(http.read("a/b", start="latest")) == []
    assert payloads(http.read("a/b", start="1")) == list("bc")


def test_start_can_be_a_time(http: Running) -> None:
    first = http.publish("a/b", "a")["publish_time_us"]
    second = http.publish("a/b", "b")["publish_time_us"]
    published = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=second)
    assert payloads(http.read("a/b", start=published.isoformat()))[-1] == "b"
    assert first == second or payloads(http.read("a/b", start=published.isoformat())) == ["b"]
    assert payloads(http.read("a/b", start="1970-01-01T00:00:00Z")) == ["a", "b"]
    assert payloads(http.read("a/b", start="9999-12-31T23:59:59.999999-23:59")) == []


@pytest.mark.parametrize(
    "start",
    [
        *("", "first", "-1", "1.5", "1_0", "+1", "9" * 30, "\N{ARABIC-INDIC DIGIT ONE}"),
        *("2024-01-01", "2024-01-01T00:00:00", "2024-02-30T00:00:00Z", "2024-01-01T00:00:00 01:00"),
    ],
)
def test_another_start_is_refused(lasting_http: Running, start: str) -> None:
    lasting_http.publish("a/b", "x")
    error = error_of(lasting_http.client.get(PATH, params={"start": start}), 400, "invalid_request")
    assert "start" in error["message"]


def test_an_offset_that_is_not_there_is_out_of_range(http: Running) -> None:
    http.publish("a/b", "x")
    error = error_of(http.client.get(PATH, params={"start": 2}), 416, "offset_out_of_range")
    assert error["details"] == {"start_offset": 0, "durable_end": 1}


def test_an_answer_is_bounded_in_bytes_but_never_stuck(http: Running) -> None:
    http.publish("a/b", "x" * 5000, *["y" * 100] * 50)
    sizes, offset = [], 0
    while page := http.read("a/b", start=offset, max_bytes=1000)["messages"]:
        sizes.append(sum(len(message["payload"]) for message in page))
        offset += len(page)
    assert offset == 51
    assert sizes[0] == 5000
    assert all(0 < size <= 1000 for size in sizes[1:])


def test_an_answer_spans_batches_up_to_its_bounds(http: Running) -> None:
    for number in range(20):
        http.publish("a/b", f"{number}", "x" * 100_000)
    everything = http.read("a/b", max_bytes=16 << 20)
    assert len(everything["messages"]) == 40
    assert len(http.read("a/b", max_messages=39, max_bytes=16 << 20)["messages"]) == 39
    assert 15 < len(http.read("a/b", max_bytes=1_000_000)["messages"]) <= 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_messages", "0"),
        ("max_messages", "10001"),
        ("max_messages", "ten"),
        ("max_messages", "1e3"),
        ("max_messages", " 5"),
        ("max_messages", ""),
        ("max_bytes", "0"),
        ("max_bytes", str(1 << 40)),
        ("wait_ms", "60001"),
        ("wait_ms", "-1"),
        ("colour", "red"),
        ("Start", "0"),
    ],
)
def test_a_wrong_parameter_is_refused_and_named(lasting_http: Running, name: str, value: str) -> None:
    lasting_http.publish("a/b", "x")
    error = error_of(lasting_http.client.get(PATH, params={name: value}), 400, "invalid_request")
    assert name in error["message"]


def test_a_parameter_given_twice_is_refused(http: Running) -> None:
    answer = http.client.get(f"{PATH}?start=0&start=1")
    assert "start" in error_of(answer, 400, "invalid_request")["message"]


def test_reading_makes_no_topic(http: Running) -> None:
    error_of(http.client.get(PATH), 404, "topic_not_found")


def test_columns_of_a_topics_own_have_no_json(http: Running) -> None:
    http.storage.topics.create("a/b", schema=pa.schema([("x", pa.int64())]))
    assert "arrow" in error_of(http.client.get(PATH), 406, "not_acceptable")["remedy"]
