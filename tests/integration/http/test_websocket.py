"""A subscription over a WebSocket: deliveries, answers, credit, and how it ends."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration.http.conftest import OpenDoor, Running, error_of
from tests.integration.http.exact import exact
from tests.integration.http.test_subscriptions import PATH, TOPIC, described, put
from tests.integration.http.test_waiting import until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from icestream.server.http import door as door_module
from icestream.server.http.models import DeliveredMessage

SOCKET = f"{PATH}/ws"


@contextlib.contextmanager
def opened(http: Running, path: str = SOCKET, **options: Any) -> Iterator[ClientConnection]:
    url = f"ws://127.0.0.1:{http.door.port}{path}"
    with connect(url, open_timeout=30, close_timeout=30, compression=None, proxy=None, **options) as client:
        yield client


def heard(client: ClientConnection) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(client.recv(30))
    return frame


def say(client: ClientConnection, **what: Any) -> None:
    client.send(json.dumps(what))


def messages(client: ClientConnection, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += heard(client)["messages"]
    assert len(found) == count
    return found


def failure(client: ClientConnection) -> tuple[str, int]:
    """The error that a socket ends with, and its close code."""
    error = heard(client)["error"]
    with pytest.raises(ConnectionClosed):
        client.recv(30)
    assert client.close_code is not None
    return error["code"], client.close_code


def payloads(found: list[dict[str, Any]]) -> list[str]:
    return [message["payload"] for message in found]


def test_messages_come_and_are_acknowledged(http: Running) -> None:
    http.publish("a/b", *"abc")
    with opened(http, f"{SOCKET}?consumer=page") as client:
        hello = heard(client)["subscribed"]
        assert (hello["topic"], hello["subscription"], hello["credit"]) == ("a/b", "s", 1000)
        found = messages(client, 3)
        assert payloads(found) == list("abc")
        exact(DeliveredMessage, found[0])
        assert [consumer["name"] for consumer in described(http)["consumers"]] == ["page"]
        say(client, ack=[0, 2])
        until(lambda: described(http)["acknowledged_ranges"] == 1)
        say(client, ack_ranges=[[1, 2]])
        until(lambda: described(http)["floor_offset"] == 3)
        http.publish("a/b", *"de")
        messages(client, 2)
        say(client, ack_cumulative=4)
        until(lambda: described(http)["floor_offset"] == 5)
    until(lambda: not described(http)["consumers"])


def test_no_more_than_the_credit_is_sent(http: Running) -> None:
    http.publish("a/b", *(f"{number}" for number in range(20)))
    with opened(http, f"{SOCKET}?credit=3") as client:
        heard(client)
        assert payloads(messages(client, 3)) == ["0", "1", "2"]
        with pytest.raises(TimeoutError):
            client.recv(0.2)
        assert described(http)["unacknowledged"] == 3
        say(client, grant=2, ack=[0])
        assert payloads(messages(client, 2)) == ["3", "4"]
        say(client, grant=100)
        assert len(messages(client, 15)) == 15


def test_nothing_is_sent_without_credit(http: Running) -> None:
    http.publish("a/b", "x")
    with opened(http, f"{SOCKET}?credit=0") as client:
        heard(client)
        with pytest.raises(TimeoutError):
            client.recv(0.1)
        say(client, grant=1)
        assert payloads(messages(client, 1)) == ["x"]


def test_a_refused_message_comes_again(http: Running) -> None:
    http.publish("a/b", *"abc")
    with opened(http) as client:
        heard(client)
        messages(client, 3)
        say(client, nack=[1], nack_ranges=[[2, 3]], delay_ms=0)
        assert [(found["offset"], found["redelivery_count"]) for found in messages(client, 2)] == [(1, 1), (2, 1)]


def test_what_a_socket_leaves_goes_to_others(http: Running) -> None:
    http.publish("a/b", *"abc")
    with opened(http, f"{SOCKET}?type=failover") as first:
        heard(first)
        assert payloads(messages(first, 3)) == list("abc")
        with opened(http, f"{SOCKET}") as second:
            heard(second)
            first.socket.shutdown(socket.SHUT_RDWR)
            assert [found["redelivery_count"] for found in messages(second, 3)] == [1, 1, 1]


def test_news_wake_a_socket_that_waits(http: Running) -> None:
    http.publish("a/b", "old")
    with opened(http, f"{SOCKET}?start=latest&filter=key%20is%20null") as client:
        heard(client)
        http.publish("a/b", "news")
        assert payloads(messages(client, 1)) == ["news"]


@pytest.mark.parametrize(
    "frame",
    [
        *("", "{", "[]", "1", '{"ack": 1}', '{"ack": [-1]}', '{"ack": ["0"]}', '{"colour": 1}', '{"grant": -1}'),
        *('{"grant": 1e9}', '{"ack_ranges": [[1]]}', '{"delay_ms": -5}', b"\x00", b"{}"),
    ],
)
def test_nonsense_ends_the_socket_with_a_reason(lasting_http: Running, frame: str | bytes) -> None:
    lasting_http.publish("a/b", "x")
    with opened(lasting_http, f"{SOCKET}?type=shared&credit=0") as client:
        heard(client)
        client.send(frame)
        assert failure(client) == ("invalid_request", 4400)


def test_only_one_of_several_can_acknowledge_all_before(http: Running) -> None:
    http.publish("a/b", "x")
    with opened(http, f"{SOCKET}?type=shared") as client:
        heard(client)
        messages(client, 1)
        say(client, ack_cumulative=0)
        assert failure(client) == ("invalid_request", 4400)


def test_a_frame_beyond_its_limit_ends_the_socket(http: Running) -> None:
    http.publish("a/b", "x")
    with opened(http, f"{SOCKET}?credit=0") as client:
        heard(client)
        client.send(" " * ((1 << 20) + 1))
        with pytest.raises(ConnectionClosed):
            client.recv(30)
        assert client.close_code == 1009
    until(lambda: not described(http)["consumers"])


def test_what_cannot_be_opened_says_why(http: Running) -> None:
    for path, expected in (
        ("/api/v1/topics/a/none/subscriptions/s/ws", ("topic_not_found", 4404)),
        (f"{TOPIC}/subscriptions/.s/ws", ("invalid_name", 4400)),
        (f"{SOCKET}?colour=red", ("invalid_request", 4400)),
        (f"{SOCKET}?credit=-1", ("invalid_request", 4400)),
    ):
        with opened(http, path) as client:
            assert failure(client) == expected
    with opened(http, f"{SOCKET}?credit=-1") as client:
        assert heard(client)["error"]["message"] == "query: credit must be int >= 0, not -1"
    http.publish("a/b", "x")
    with opened(http) as first:
        heard(first)  # it has the subscription before the second one asks
        with opened(http) as second:
            assert failure(second) == ("subscription_busy", 4409)


def test_the_end_of_a_subscription_is_told(http: Running) -> None:
    http.publish("a/b", "x")
    with opened(http) as client:
        heard(client)
        messages(client, 1)
        assert http.client.delete(PATH).status_code == 204
        code, closed_with = failure(client)
        assert closed_with in {4404, 4410, 4503}, code


def test_pages_of_other_origins_are_refused(open_door: OpenDoor) -> None:
    http = open_door(server={"allowed_origins": "https://shop.example"})
    http.publish("a/b", "x")
    with pytest.raises(InvalidStatus) as refusal, opened(http, origin="https://evil.example"):
        pass
    assert refusal.value.response.status_code == 403
    assert json.loads(refusal.value.response.body)["error"]["code"] == "origin_refused"
    for origin in ("https://shop.example", f"http://127.0.0.1:{http.door.port}"):
        with opened(http, f"{SOCKET}?type=shared", origin=origin) as client:
            heard(client)


def test_a_plain_request_is_told_to_upgrade(http: Running) -> None:
    error_of(http.client.get(SOCKET), 426, "upgrade_required")


def test_there_is_no_socket_elsewhere(http: Running) -> None:
    for path in ("/api/v1/topics", "/", f"{SOCKET}/x"):
        with pytest.raises(InvalidStatus) as refusal, opened(http, path):
            pass
        assert refusal.value.response.status_code == 404
        assert json.loads(refusal.value.response.body)["error"]["code"] == "no_such_route"


def test_sockets_count_among_the_requests_that_may_be_open(open_door: OpenDoor) -> None:
    http = open_door(server={"max_connections": 2})
    http.publish("a/b", "x")
    put(http, type="shared")
    with opened(http) as first, opened(http) as second:
        heard(first)
        heard(second)
        with pytest.raises(InvalidStatus) as refusal, opened(http):
            pass
        assert refusal.value.response.status_code == 429
        assert http.client.get("/healthz").status_code == 200
    until(lambda: http.client.get("/api/v1/topics").status_code == 200)


def test_a_socket_outlives_the_time_that_a_request_may_take(http: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "REQUEST_TIMEOUT_SECONDS", 0.01)
    http.publish("a/b", "x")
    with opened(http) as client:
        heard(client)
        messages(client, 1)
        time.sleep(0.05)
        http.publish("a/b", "y")
        assert payloads(messages(client, 1)) == ["y"]


def test_a_request_for_a_socket_that_is_never_complete_is_let_go(
    http: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "REQUEST_TIMEOUT_SECONDS", 0.01)
    head = f"GET {SOCKET} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    with socket.create_connection(("127.0.0.1", http.door.port), timeout=30) as connection:
        connection.sendall(f"{head}Content-Length: 5\r\n\r\n".encode())
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1 << 16):
                pass


def test_a_closing_door_closes_the_sockets(open_door: OpenDoor) -> None:
    http = open_door()
    http.publish("a/b", "x")
    with opened(http) as client:
        heard(client)
        messages(client, 1)
        stopping = threading.Thread(target=http.door.stop, args=(30,))
        stopping.start()
        with pytest.raises(ConnectionClosed):
            client.recv(30)
        assert client.close_code in {1001, 1012}
        stopping.join(30)


def test_a_silent_client_stays_connected_as_long_as_its_socket_does(open_door: OpenDoor) -> None:
    http = open_door(subscriptions={"session_timeout_ms": 150})
    http.publish("a/b", "x")
    put(http, type="shared")
    with opened(http) as client:
        heard(client)
        messages(client, 1)
        with pytest.raises(TimeoutError):
            client.recv(0.6)
        assert [found["unacknowledged"] for found in described(http)["consumers"]] == [1]


fields = st.sampled_from(["ack", "ack_ranges", "ack_cumulative", "nack", "nack_ranges", "delay_ms", "grant", "x"])
numbers = st.integers(-5, 1 << 66)
said = st.dictionaries(
    fields, numbers | st.lists(numbers | st.lists(numbers, max_size=3), max_size=4) | st.text(max_size=5), max_size=4
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(said.map(json.dumps) | st.text(max_size=20) | st.binary(max_size=20), max_size=4))
def test_whatever_is_said_is_obeyed_or_refused(lasting_http: Running, frames: list[str | bytes]) -> None:
    lasting_http.publish("a/b", "x")
    with opened(lasting_http, f"{SOCKET}?type=shared") as client:
        heard(client)
        try:
            for frame in frames:
                client.send(frame)
            say(client, colour=1)
            while "error" not in (last := heard(client)):
                pass
        except ConnectionClosed:
            assert client.close_code == 4400  # it was closed before everything was sent
        else:
            assert last["error"]["code"] == "invalid_request"
