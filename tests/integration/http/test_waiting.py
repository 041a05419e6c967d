"""Readers that wait are woken; none of these tests depends on a clock.

Each waits far longer than a test may take, so it passes only if something else than time ends the waiting.
"""

import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
from tests.integration.http.conftest import PATIENCE_SECONDS, OpenDoor, Running, error_of

from icestream.model.messages import message_batch
from icestream.wal import Log

WAIT: dict[str, str | int] = {"start": "latest", "wait_ms": 60_000}
PATH = "/api/v1/topics/a/b/messages"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.001)


def waiting_read(http: Running, pool: ThreadPoolExecutor, log: Log) -> "Future[httpx.Response]":
    """A read that is known to wait."""
    listening = len(log.listeners)
    future = pool.submit(http.client.get, PATH, params=WAIT)
    until(lambda: len(log.listeners) > listening)
    return future


def made_topic(http: Running) -> Log:
    return http.storage.topics.create("a/b").log


def test_a_waiting_reader_is_woken_by_a_publish(http: Running) -> None:
    log = made_topic(http)
    with ThreadPoolExecutor() as pool:
        future = waiting_read(http, pool, log)
        http.publish("a/b", "news")
        answer: dict[str, Any] = future.result(PATIENCE_SECONDS).json()
    assert [message["payload"] for message in answer["messages"]] == ["news"]
    until(lambda: not log.listeners)


def test_more_readers_can_wait_than_there_are_threads(http: Running) -> None:
    log = made_topic(http)
    with ThreadPoolExecutor(90) as pool:
        futures = [waiting_read(http, pool, log) for _ in range(90)]
        assert http.client.get("/api/v1/topics").status_code == 200
        http.storage.publish(http.storage.topic("a/b"), message_batch([b"news"]))
        for future in futures:
            assert len(future.result(PATIENCE_SECONDS).json()["messages"]) == 1


def test_messages_that_are_there_are_not_waited_for(http: Running) -> None:
    http.publish("a/b", "x")
    assert len(http.read("a/b", wait_ms=60_000)["messages"]) == 1


def test_a_wait_that_is_over_answers_with_nothing(http: Running) -> None:
    http.publish("a/b", "x")
    answer = http.read("a/b", start="latest", wait_ms=1)
    assert (answer["messages"], answer["next_offset"]) == ([], 1)


def test_a_waiting_reader_hears_that_the_topic_was_deleted(http: Running) -> None:
    log = made_topic(http)
    with ThreadPoolExecutor() as pool:
        future = waiting_read(http, pool, log)
        http.client.delete("/api/v1/topics/a/b")
        error_of(future.result(PATIENCE_SECONDS), 404, "topic_not_found")


def test_a_reader_that_hung_up_is_no_longer_kept(http: Running) -> None:
    log = made_topic(http)
    with socket.create_connection(("127.0.0.1", http.door.port)) as connection:
        connection.sendall(f"GET {PATH}?start=latest&wait_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        until(lambda: bool(log.listeners))
    until(lambda: not log.listeners)


def test_a_closing_door_answers_those_who_wait(open_door: OpenDoor) -> None:
    http = open_door()
    log = made_topic(http)
    with ThreadPoolExecutor() as pool:
        future = waiting_read(http, pool, log)
        http.door.stop(PATIENCE_SECONDS)
        assert future.result(PATIENCE_SECONDS).json()["messages"] == []


def test_a_publisher_that_hung_up_before_the_table_has_its_messages_holds_no_place(open_door: OpenDoor) -> None:
    http = open_door(server={"max_connections": 1})
    log = made_topic(http)
    body = '{"messages": [{"payload": "x"}], "ack": "table"}'
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", http.door.port)) as connection:
        connection.sendall((head + body).encode())
        until(lambda: log.durable_end == 1)
        error_of(http.client.get("/api/v1/topics"), 429, "overloaded")
    until(lambda: http.client.get("/api/v1/topics").status_code == 200)
