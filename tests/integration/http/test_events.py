"""Server-Sent Events: every message an event, and nothing lost when a client goes and comes back."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.integration.http.conftest import OpenDoor, Running, error_of
from tests.integration.http.exact import exact
from tests.integration.http.test_subscriptions import PATH, TOPIC, described, put
from tests.integration.http.test_waiting import until

from icestream.model.messages import message_batch
from icestream.server.http import door as door_module
from icestream.server.http import streams as streams_module
from icestream.server.http.models import DeliveredMessage, JsonMessage

EVENTS = f"{PATH}/events"


class Event(dict[str, str]):
    """The fields of one event."""

    @property
    def json(self) -> Any:
        return json.loads(self["data"])


def events_of(answer: httpx.Response) -> Iterator[Event]:
    """Events as they come; comments are passed over."""
    event = Event()
    for line in answer.iter_lines():
        if not line:
            if "data" in event:
                yield event
            event = Event()
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value


@contextlib.contextmanager
def listening(
    http: Running, path: str, headers: dict[str, str] | None = None, **query: Any
) -> Iterator[Iterator[Event]]:
    with http.client.stream("GET", path, params=query, headers=headers or {}) as answer:
        if answer.status_code != 200:
            answer.read()
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield events_of(answer)


def take(events: Iterator[Event], count: int) -> list[Event]:
    return [next(events) for _ in range(count)]


def payloads(events: list[Event]) -> list[str]:
    return [event.json["payload"] for event in events]


class TestFollowing:
    def test_gives_old_and_new_messages_as_events(self, http: Running) -> None:
        http.publish("a/b", *"ab")
        with listening(http, f"{TOPIC}/events", start="earliest") as events:
            old = take(events, 2)
            http.publish("a/b", "c\nd\u2028")
            (new,) = take(events, 1)
        assert [event["id"] for event in [*old, new]] == ["0", "1", "2"]
        assert payloads([*old, new]) == ["a", "b", "c\nd\u2028"]
        exact(JsonMessage, new["data"])

    def test_begins_at_the_end_unless_told_otherwise(self, http: Running) -> None:
        http.publish("a/b", "old")
        log = http.storage.topic("a/b").log
        with listening(http, f"{TOPIC}/events") as events:
            until(lambda: bool(log.listeners))
            http.publish("a/b", "new")
            assert payloads(take(events, 1)) == ["new"]
        until(lambda: not log.listeners)

    def test_goes_on_behind_the_last_event(self, http: Running) -> None:
        http.publish("a/b", *"abc")
        with listening(http, f"{TOPIC}/events", {"Last-Event-ID": "0"}, start="latest") as events:
            assert payloads(take(events, 2)) == ["b", "c"]

    def test_tells_of_the_topics_end(self, http: Running) -> None:
        http.publish("a/b", "x")
        with listening(http, f"{TOPIC}/events", start="earliest") as events:
            take(events, 1)
            assert http.client.delete(TOPIC).status_code == 204
            (last,) = list(events)
        assert (last["event"], last.json["error"]["code"]) == ("failure", "topic_not_found")

    def test_refuses_what_it_cannot_give(self, http: Running) -> None:
        http.publish("a/b", "x")
        http.storage.topics.create("a/own", schema=pa.schema([("x", pa.int64())]))
        follow = f"{TOPIC}/events"
        error_of(http.client.get("/api/v1/topics/a/none/events"), 404, "topic_not_found")
        error_of(http.client.get("/api/v1/topics/a/own/events"), 406, "not_acceptable")
        error_of(http.client.get(follow, params={"start": "5"}), 416, "offset_out_of_range")
        error_of(http.client.get(follow, params={"start": "first"}), 400, "invalid_request")
        error_of(http.client.get(follow, headers={"Last-Event-ID": "x"}), 400, "invalid_request")
        assert http.client.head(follow).headers["content-type"].startswith("text/event-stream")

    def test_a_pause_has_heartbeats(self, http: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streams_module, "HEARTBEAT_SECONDS", 0.01)
        http.publish("a/b", "x")
        put(http, start="latest")
        for path in (f"{TOPIC}/events", EVENTS):
            with http.client.stream("GET", path) as answer:
                lines = answer.iter_lines()
                assert [line for line, _ in zip((line for line in lines if line == ":"), range(3), strict=False)]


class TestOfASubscription:
    def test_messages_are_acknowledged_once_they_are_written(self, http: Running) -> None:
        http.publish("a/b", *"abc")
        with listening(http, EVENTS, consumer="page") as events:
            hello, *messages = take(events, 4)
            assert hello["event"] == "subscribed"
            assert {"topic": "a/b", "subscription": "s"}.items() <= hello.json.items()
            until(lambda: described(http)["floor_offset"] == 3)
            assert [found["name"] for found in described(http)["consumers"]] == ["page"]
        assert payloads(messages) == list("abc")
        exact(DeliveredMessage, messages[0]["data"])
        until(lambda: not described(http)["consumers"])
        with listening(http, EVENTS) as events:
            take(events, 1)
            http.publish("a/b", "d")
            assert payloads(take(events, 1)) == ["d"]

    def test_what_is_not_acknowledged_by_hand_comes_again(self, http: Running) -> None:
        http.publish("a/b", *"abc")
        with listening(http, EVENTS, ack="manual") as events:
            hello, *_ = take(events, 4)
            acked = {"consumer": hello.json["consumer"], "offsets": [0, 2]}
            assert http.client.post(f"{PATH}/ack", json=acked).status_code == 204
            assert described(http)["floor_offset"] == 1
        until(lambda: not described(http)["consumers"])
        with listening(http, EVENTS, ack="manual") as events:
            _, again = take(events, 2)
        assert (again["id"], again.json["redelivery_count"]) == ("1", 1)

    def test_a_client_that_comes_back_gets_what_was_on_its_way(self, http: Running) -> None:
        http.publish("a/b", *"abcde")
        with listening(http, EVENTS) as events:
            take(events, 6)
            until(lambda: described(http)["floor_offset"] == 5)
        until(lambda: not described(http)["consumers"])
        with listening(http, EVENTS, {"Last-Event-ID": "2"}) as events:
            assert payloads(take(events, 3)[1:]) == ["d", "e"]

    def test_others_progress_is_not_set_back(self, http: Running) -> None:
        http.publish("a/b", *"abc")
        with listening(http, EVENTS, type="shared") as events:
            take(events, 4)
            until(lambda: described(http)["floor_offset"] == 3)
        with listening(http, EVENTS, {"Last-Event-ID": "0"}) as events:
            take(events, 1)
            http.publish("a/b", "d")
            assert payloads(take(events, 1)) == ["d"]

    def test_it_is_made_as_the_query_says(self, http: Running) -> None:
        messages = [{"payload": f"{number}", "key": "ab"[number % 2]} for number in range(10)]
        assert http.client.post(f"{TOPIC}/messages", json={"messages": messages}).status_code == 200
        with listening(http, EVENTS, type="shared", start="4", filter="key = 'b'") as events:
            assert payloads(take(events, 4)[1:]) == ["5", "7", "9"]
            made = described(http)
            assert (made["type"], made["filter"]) == ("shared", "key = 'b'")

    def test_its_refusals_are_plain_answers(self, http: Running) -> None:
        http.publish("a/b", "x")
        put(http)
        with listening(http, EVENTS) as events:
            take(events, 1)
            error_of(http.client.get(EVENTS), 409, "subscription_busy")
        error_of(http.client.get(EVENTS, params={"type": "fair"}), 400, "invalid_request")
        error_of(http.client.get(EVENTS, params={"ack": "never"}), 400, "invalid_request")
        error_of(http.client.get(f"{TOPIC}/subscriptions/n/events", params={"filter": "key ="}), 400, "invalid_request")

    def test_its_end_is_the_last_event(self, http: Running) -> None:
        http.publish("a/b", "x")
        with listening(http, EVENTS) as events:
            take(events, 2)
            assert http.client.delete(PATH).status_code == 204
            (last,) = list(events)
        assert last["event"] == "failure"


def test_pages_of_other_origins_are_refused_unless_they_are_allowed(open_door: OpenDoor) -> None:
    http = open_door(server={"allowed_origins": "https://shop.example, null"})
    http.publish("a/b", "x")
    own = f"http://127.0.0.1:{http.door.port}"
    for path in (f"{TOPIC}/events", EVENTS):
        for refused in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            with http.client.stream("GET", path, headers=refused) as answer:
                assert answer.status_code == 403
                answer.read()
                error_of(answer, 403, "origin_refused")
        for origin in ("https://shop.example", "null", own):
            with http.client.stream("GET", path, headers={"Origin": origin}) as answer:
                assert answer.status_code == 200
                assert answer.headers.get("access-control-allow-origin") == (None if origin == own else origin)
            until(lambda: not _consumers(http))
    assert http.client.delete(PATH).status_code == 204


def _consumers(http: Running) -> list[Any]:
    answer = http.client.get(PATH)
    return answer.json()["consumers"] if answer.status_code == 200 else []


def test_a_closing_door_ends_the_streams(open_door: OpenDoor) -> None:
    http = open_door()
    http.publish("a/b", "x")
    with listening(http, EVENTS) as events, listening(http, f"{TOPIC}/events") as followed:
        take(events, 2)
        stopping = threading.Thread(target=http.door.stop, args=(30,))
        stopping.start()
        assert list(events) == []
        assert list(followed) == []
        stopping.join(30)


def reading_nothing(http: Running, path: str) -> socket.socket:
    """A client that asks and never reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", http.door.port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return connection


def test_a_client_that_reads_nothing_is_cut_off_in_the_end(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And holds up nobody but itself until then."""
    http = open_door(subscriptions={"session_timeout_ms": 600_000})
    topic = http.storage.topics.create("a/b")
    for _ in range(40):
        http.storage.publish(topic, message_batch([b"x" * 500_000] * 2))
    monkeypatch.setattr(door_module, "STALL_SECONDS", 0.2)
    with reading_nothing(http, f"{EVENTS}?type=shared"):
        until(lambda: bool(_consumers(http)))
        with listening(http, f"{PATH}2/events") as events:
            assert len(take(events, 81)) == 81
        until(lambda: not _consumers(http))
    assert described(http)["floor_offset"] < 80


def test_what_a_client_that_hung_up_did_not_take_is_not_acknowledged(http: Running) -> None:
    http.storage.publish(http.storage.topics.create("a/b"), message_batch([b"x" * 12_000_000]))
    with reading_nothing(http, EVENTS):
        until(lambda: bool(_consumers(http)) and described(http)["unacknowledged"] == 1)
    until(lambda: not _consumers(http))
    assert described(http)["floor_offset"] == 0
