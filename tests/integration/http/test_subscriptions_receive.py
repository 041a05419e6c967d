"""Consumers over plain requests: what they get, what becomes of what they do not acknowledge, and how they end."""

import socket
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.integration.http.conftest import PATIENCE_SECONDS, OpenDoor, Running, error_of
from tests.integration.http.exact import exact
from tests.integration.http.test_subscriptions import PATH, TOPIC, described, put
from tests.integration.http.test_waiting import until

from icestream.model.messages import message_batch
from icestream.server.http.models import ReceivedMessages
from icestream.server.http.subscriptions import Consumers

ARROW = {"Accept": "application/vnd.apache.arrow.stream"}
LONG_MS = 60_000


def receive(http: Running, path: str = PATH, **body: Any) -> tuple[str, list[dict[str, Any]]]:
    answer = http.client.post(f"{path}/receive", json=body)
    assert answer.status_code == 200, answer.text
    exact(ReceivedMessages, answer.content)
    found = answer.json()
    return found["consumer"], found["messages"]


def ack(http: Running, consumer: str, path: str = PATH, **what: Any) -> None:
    answer = http.client.post(f"{path}/ack", json={"consumer": consumer, **what})
    assert (answer.status_code, answer.content) == (204, b"")


def payloads(messages: list[dict[str, Any]]) -> list[str]:
    return [message["payload"] for message in messages]


def waiting_receive(http: Running, pool: ThreadPoolExecutor, **body: Any) -> "Future[httpx.Response]":
    """A request that is known to wait."""
    before = listening(http)
    future = pool.submit(http.client.post, f"{PATH}/receive", json={"timeout_ms": LONG_MS, **body})
    until(lambda: listening(http) > before)
    return future


def listening(http: Running) -> int:
    """How many requests wait for messages of a subscription."""
    consumers: Consumers = http.door._app.state.consumers
    return consumers.receiving


def test_a_consumer_goes_on_from_request_to_request(http: Running) -> None:
    http.publish("a/b", *"abcde")
    put(http)
    consumer, first = receive(http, max_messages=2, name="worker")
    again, second = receive(http, max_messages=2, consumer=consumer)
    _, third = receive(http, consumer=consumer)
    assert again == consumer
    assert payloads(first + second + third) == list("abcde")
    assert {message["redelivery_count"] for message in first + second + third} == {0}
    (figures,) = described(http)["consumers"]
    assert (figures["name"], figures["unacknowledged"], figures["is_active"]) == ("worker", 5, True)
    assert receive(http, consumer=consumer) == (consumer, [])


def test_acknowledged_messages_are_done(http: Running) -> None:
    http.publish("a/b", *"abcdefgh")
    put(http)
    consumer, _ = receive(http)
    ack(http, consumer, offsets=[0, 2])
    assert described(http)["floor_offset"] == 1
    ack(http, consumer, ranges=[[1, 2], [4, 6]])
    figures = described(http)
    assert (figures["floor_offset"], figures["acknowledged_ranges"], figures["lag_messages"]) == (3, 1, 3)
    ack(http, consumer, cumulative=6)
    assert described(http)["floor_offset"] == 7
    assert http.client.delete(f"{PATH}/consumers/{consumer}").status_code == 204
    assert payloads(receive(http)[1]) == ["h"]


def test_what_a_consumer_leaves_goes_to_others_with_its_count(http: Running) -> None:
    http.publish("a/b", *"abcd")
    put(http, type="shared")
    gone, taken = receive(http, max_messages=3)
    stays, _ = receive(http)
    assert http.client.delete(f"{PATH}/consumers/{gone}").status_code == 204
    error_of(http.client.delete(f"{PATH}/consumers/{gone}"), 410, "consumer_gone")
    _, again = receive(http, consumer=stays, timeout_ms=LONG_MS)
    assert payloads(again) == payloads(taken)
    assert {message["redelivery_count"] for message in again} == {1}


def test_a_refused_message_comes_again(http: Running) -> None:
    http.publish("a/b", *"abc")
    put(http)
    consumer, _ = receive(http)
    refused = {"consumer": consumer, "offsets": [1], "ranges": [[2, 3]], "delay_ms": 0}
    assert http.client.post(f"{PATH}/nack", json=refused).status_code == 204
    _, again = receive(http, consumer=consumer, timeout_ms=LONG_MS)
    assert [(message["offset"], message["redelivery_count"]) for message in again] == [(1, 1), (2, 1)]
    assert described(http)["redeliveries"] == 2


def test_a_filter_leaves_the_others_out(http: Running) -> None:
    messages = [{"payload": f"{number}", "key": "ab"[number % 2]} for number in range(10)]
    assert http.client.post(f"{TOPIC}/messages", json={"messages": messages}).status_code == 200
    put(http, filter="key = 'b'")
    consumer, found = receive(http)
    assert payloads(found) == ["1", "3", "5", "7", "9"]
    ack(http, consumer, cumulative=9)
    assert described(http)["lag_messages"] == 0


def test_messages_come_as_arrow_where_it_is_asked_for(http: Running) -> None:
    http.publish("a/b", *"abc")
    put(http)
    answer = http.client.post(f"{PATH}/receive", json={}, headers=ARROW)
    with pa.ipc.open_stream(answer.content) as stream:
        table = stream.read_all()
    assert table.column("payload").to_pylist() == [b"a", b"b", b"c"]
    assert table.column("redelivery_count").to_pylist() == [0, 0, 0]
    nothing = http.client.post(
        f"{PATH}/receive", json={"consumer": answer.headers["icestream-consumer"]}, headers=ARROW
    )
    with pa.ipc.open_stream(nothing.content) as stream:
        assert stream.read_all().num_rows == 0


def test_columns_of_a_topics_own_come_as_arrow_alone(http: Running) -> None:
    topic = http.storage.topics.create("a/b", schema=pa.schema([("x", pa.int64())]))
    http.storage.publish(topic, pa.record_batch({"x": [1, 2]}))
    put(http, filter="x > 1")
    assert "arrow" in error_of(http.client.post(f"{PATH}/receive", json={}), 406, "not_acceptable")["remedy"]
    with pa.ipc.open_stream(http.client.post(f"{PATH}/receive", json={}, headers=ARROW).content) as stream:
        table = stream.read_all()
    assert (table.column("x").to_pylist(), table.column("_redelivery_count").to_pylist()) == ([2], [0])


def test_an_exclusive_subscription_has_one_consumer(http: Running) -> None:
    http.publish("a/b", "x")
    put(http)
    receive(http)
    assert error_of(http.client.post(f"{PATH}/receive", json={}), 409, "subscription_busy")["retryable"] is False


def test_only_one_of_several_can_acknowledge_all_before(http: Running) -> None:
    http.publish("a/b", "x")
    put(http, type="shared")
    consumer, _ = receive(http)
    error_of(http.client.post(f"{PATH}/ack", json={"consumer": consumer, "cumulative": 0}), 400, "invalid_request")


@pytest.mark.parametrize("operation", ["ack", "nack"])
@pytest.mark.parametrize(
    "what", [{}, {"offsets": [-1]}, {"offsets": ["0"]}, {"ranges": [[1]]}, {"ranges": [1]}, {"colour": 1}]
)
def test_an_acknowledgement_of_nothing_or_nonsense_is_refused(
    lasting_http: Running, operation: str, what: dict[str, Any]
) -> None:
    lasting_http.publish("a/b", "x")
    lasting_http.client.put(PATH, json={"type": "shared"})
    consumer, _ = receive(lasting_http)
    body = {"consumer": consumer, **what}
    error_of(lasting_http.client.post(f"{PATH}/{operation}", json=body), 400, "invalid_request")


def test_a_token_stands_for_one_consumer_of_one_subscription(http: Running) -> None:
    http.publish("a/b", "x")
    put(http)
    put(http, f"{TOPIC}/subscriptions/other")
    consumer, _ = receive(http)
    for path, token in ((PATH, "made-up"), (f"{TOPIC}/subscriptions/other", consumer)):
        error_of(http.client.post(f"{path}/receive", json={"consumer": token}), 410, "consumer_gone")
        error_of(http.client.post(f"{path}/ack", json={"consumer": token, "offsets": [0]}), 410, "consumer_gone")


def test_a_waiting_consumer_is_woken_by_a_publish(http: Running) -> None:
    http.publish("a/b", "old")
    put(http, start="latest")
    with ThreadPoolExecutor() as pool:
        future = waiting_receive(http, pool)
        http.publish("a/b", "news")
        assert payloads(future.result(PATIENCE_SECONDS).json()["messages"]) == ["news"]


def test_more_consumers_can_wait_than_there_are_threads(http: Running) -> None:
    http.publish("a/b", "old")
    put(http, type="shared", start="latest")
    with ThreadPoolExecutor(60) as pool:
        futures = [pool.submit(http.client.post, f"{PATH}/receive", json={"timeout_ms": LONG_MS}) for _ in range(60)]
        until(lambda: len(described(http)["consumers"]) == 60)
        http.storage.publish(http.storage.topic("a/b"), message_batch([b"x"] * 100_000))
        found = [future.result(PATIENCE_SECONDS).json() for future in futures]
    offsets = [message["offset"] for answer in found for message in answer["messages"]]
    assert len(offsets) == len(set(offsets)) > 0
    assert all(answer["messages"] for answer in found)


def test_a_wait_that_is_over_answers_with_nothing(http: Running) -> None:
    http.publish("a/b", "x")
    put(http, start="latest")
    assert receive(http, timeout_ms=1)[1] == []


def test_what_a_client_did_not_wait_for_goes_out_again(http: Running) -> None:
    http.publish("a/b", "old")
    put(http, type="shared", start="latest")
    body = b'{"timeout_ms": 60000}'
    head = f"POST {PATH}/receive HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", http.door.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: len(described(http)["consumers"]) == 1)
    http.publish("a/b", "news")
    assert payloads(receive(http, timeout_ms=LONG_MS)[1]) == ["news"]


def test_a_consumer_receives_for_one_request_at_a_time(http: Running) -> None:
    http.publish("a/b", "x")
    put(http, start="latest")
    consumer, _ = receive(http)
    with ThreadPoolExecutor() as pool:
        future = waiting_receive(http, pool, consumer=consumer)
        error_of(http.client.post(f"{PATH}/receive", json={"consumer": consumer}), 400, "invalid_request")
        http.publish("a/b", "news")
        assert payloads(future.result(PATIENCE_SECONDS).json()["messages"]) == ["news"]


def test_a_silent_consumer_is_disconnected_and_one_that_waits_is_not(open_door: OpenDoor) -> None:
    http = open_door(subscriptions={"session_timeout_ms": 150})
    http.publish("a/b", *"ab")
    put(http, type="shared")
    silent, _ = receive(http, max_messages=1)
    with ThreadPoolExecutor() as pool:
        receive_both = pool.submit(receive, http, max_messages=1)
        waiting, _ = receive_both.result(PATIENCE_SECONDS)
        future = pool.submit(receive, http, consumer=waiting, timeout_ms=LONG_MS)
        _, again = future.result(PATIENCE_SECONDS)
    assert payloads(again) == ["a"]
    error_of(http.client.post(f"{PATH}/receive", json={"consumer": silent}), 410, "consumer_gone")


def test_the_number_of_consumers_is_bounded_and_those_that_are_gone_make_room(open_door: OpenDoor) -> None:
    http = open_door(server={"max_connections": 2}, subscriptions={"session_timeout_ms": 100})
    http.publish("a/b", "x")
    put(http, type="shared")
    receive(http)
    receive(http)
    statuses = set()

    def connected() -> bool:
        status = http.client.post(f"{PATH}/receive", json={}).status_code
        statuses.add(status)
        return status == 200

    until(connected)
    assert statuses <= {200, 429}


def test_waiting_consumers_hear_of_the_end_of_subscription_and_topic(http: Running) -> None:
    http.publish("a/b", "x")
    with ThreadPoolExecutor() as pool:
        put(http, start="latest")
        future = waiting_receive(http, pool)
        assert http.client.delete(PATH).status_code == 204
        assert future.result(PATIENCE_SECONDS).status_code in {404, 410}
        put(http, start="latest")
        future = waiting_receive(http, pool)
        assert http.client.delete(TOPIC).status_code == 204
        assert future.result(PATIENCE_SECONDS).status_code in {404, 410}


def test_a_closing_door_answers_those_who_wait(open_door: OpenDoor) -> None:
    http = open_door()
    http.publish("a/b", "x")
    put(http, start="latest")
    with ThreadPoolExecutor() as pool:
        future = waiting_receive(http, pool)
        http.door.stop(PATIENCE_SECONDS)
        assert future.result(PATIENCE_SECONDS).json()["messages"] == []
