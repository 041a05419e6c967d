"""Sizes and numbers have bounds, and going over one is answered clearly."""

import json
import socket
import threading
from collections.abc import Iterator

import pytest
from tests.integration.http.conftest import OpenDoor, Running, error_of
from tests.integration.http.test_waiting import until

from icestream.server.http import door as door_module
from icestream.server.http import requests as requests_module
from icestream.server.http.models import MAX_JSON_MESSAGES
from icestream.server.http.requests import MAX_ADMIN_BYTES

PATH = "/api/v1/topics/a/b/messages"
SMALL = {"max_message_bytes": 1000, "max_batch_bytes": 4000, "max_in_flight_bytes": 8000}
JSON = {"Content-Type": "application/json"}


def raw(http: Running, request: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", http.door.port))
    connection.settimeout(30)
    connection.sendall(request)
    return connection


def status_of(connection: socket.socket) -> int:
    with connection:
        return int(connection.recv(1 << 16).split(b" ")[1])


def test_an_announced_size_beyond_the_limit_is_refused_before_the_body_comes(open_door: OpenDoor) -> None:
    http = open_door(server=SMALL)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 4001\r\n\r\n"
    assert status_of(raw(http, head.encode())) == 413


def test_a_body_of_unknown_size_is_refused_once_it_is_too_large(open_door: OpenDoor) -> None:
    http = open_door(server=SMALL)

    def pieces() -> Iterator[bytes]:
        for _ in range(10):
            yield b" " * 1000

    error = error_of(http.client.post(PATH, content=pieces(), headers=JSON), 413, "too_large")
    assert error["details"] == {"max_bytes": 4000}
    assert http.storage.budget.used_bytes == 0


def test_a_message_beyond_its_limit_is_refused(open_door: OpenDoor) -> None:
    http = open_door(server=SMALL)
    http.publish("a/b", "x" * 900)
    error_of(http.client.post(PATH, json={"messages": [{"payload": "x" * 1001}]}), 413, "too_large")


def test_administrative_bodies_are_small(http: Running) -> None:
    body = json.dumps({"topic": "x" * MAX_ADMIN_BYTES})
    error_of(http.client.post("/api/v1/topics", content=body, headers=JSON), 413, "too_large")


def test_a_request_has_a_bounded_number_of_messages(http: Running) -> None:
    body = '{"messages":[' + ",".join(['{"payload":""}'] * (MAX_JSON_MESSAGES + 1)) + "]}"
    error_of(http.post_json(PATH, body), 400, "invalid_request")


def test_bodies_that_would_exceed_the_bytes_in_flight_are_refused_for_now(open_door: OpenDoor) -> None:
    http = open_door(server=SMALL)
    http.storage.budget.take(7990)
    answer = http.client.post(PATH, json={"messages": [{"payload": "x"}]})
    assert error_of(answer, 429, "overloaded")["retryable"] is True
    assert answer.headers["retry-after"] == "1"
    http.storage.budget.give_back(7990)
    http.publish("a/b", "x")
    assert http.storage.budget.used_bytes == 0


def test_a_body_that_ends_early_leaves_nothing_behind(open_door: OpenDoor) -> None:
    http = open_door(server=SMALL)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\nabc"
    connection = raw(http, head.encode())
    until(lambda: http.storage.budget.used_bytes == 3)
    connection.close()
    until(lambda: http.storage.budget.used_bytes == 0)
    http.publish("a/b", "x")


def test_open_requests_are_bounded_but_health_always_answers(open_door: OpenDoor) -> None:
    http = open_door(server={"max_connections": 1})
    log = http.storage.topics.create("a/b").log
    with raw(http, f"GET {PATH}?start=latest&wait_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n".encode()):
        until(lambda: bool(log.listeners))
        error_of(http.client.get("/api/v1/topics"), 429, "overloaded")
        for path in ("/healthz", "/readyz", "/metrics"):
            assert http.client.get(path).status_code == 200
    until(lambda: http.client.get("/api/v1/topics").status_code == 200)


def test_connections_are_bounded(open_door: OpenDoor) -> None:
    http = open_door(server={"max_connections": 1})
    with raw(http, b""), raw(http, b""):
        until(lambda: http.door._server is not None and len(http.door._server.server_state.connections) == 2)
        assert status_of(raw(http, b"")) == 503
    until(lambda: http.client.get("/healthz").status_code == 200)


def test_a_client_that_sends_no_request_is_let_go(http: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "REQUEST_TIMEOUT_SECONDS", 0.01)
    for beginning in (b"", b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET / HT"):
        with raw(http, beginning) as connection:
            while connection.recv(1 << 16):
                pass


def test_a_body_that_stands_still_is_given_up(http: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "_PAUSE_SECONDS", 0.01)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\nabc"
    assert status_of(raw(http, head.encode())) == 408
    assert http.storage.budget.used_bytes == 0


@pytest.mark.parametrize("request_head", [b"GET /" + b"x" * 200_000, b"\x16\x03\x01" * 100, b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_not_http_is_refused_by_the_server(lasting_http: Running, request_head: bytes) -> None:
    assert status_of(raw(lasting_http, request_head + b" HTTP/1.1\r\n\r\n")) == 400


def test_many_publishers_at_once_lose_nothing(http: Running) -> None:
    threads = [threading.Thread(target=lambda: http.publish("a/b", "x", "y")) for _ in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [message["offset"] for message in http.read("a/b")["messages"]] == list(range(120))
    assert http.storage.budget.used_bytes == 0
