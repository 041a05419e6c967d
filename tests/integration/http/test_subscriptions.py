"""Subscriptions are made, changed, looked at, moved and deleted."""

import json
from typing import Any

import pytest
from tests.integration.http.conftest import OpenDoor, Running, error_of
from tests.integration.http.exact import exact

from icestream.protocol.subscribe import SubscriptionDescription, SubscriptionList
from icestream.server.http.models import HttpStats

TOPIC = "/api/v1/topics/a/b"
PATH = f"{TOPIC}/subscriptions/s"


def put(http: Running, path: str = PATH, status: int = 201, **body: Any) -> dict[str, Any]:
    answer = http.client.put(path, json=body)
    assert answer.status_code == status, answer.text
    described: dict[str, Any] = answer.json()
    exact(SubscriptionDescription, answer.content)
    return described


def described(http: Running, path: str = PATH) -> dict[str, Any]:
    answer = http.client.get(path)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_subscription_from_put_to_delete(http: Running) -> None:
    http.publish("a/b", *"abc")
    made = put(http, type="shared", ack_timeout_ms=5000)
    assert (made["topic"], made["subscription"], made["type"]) == ("a/b", "s", "shared")
    assert (made["floor_offset"], made["durable_end"], made["lag_messages"]) == (0, 3, 3)
    assert made["options"] == {"type": "shared", "ack_timeout_ms": 5000, "nack_delay_ms": 1000}
    now = described(http)
    assert now == {**made, "lag_seconds": now["lag_seconds"]}
    listed = exact(SubscriptionList, http.client.get(f"{TOPIC}/subscriptions").content)
    assert [found.subscription for found in listed.subscriptions] == ["s"]
    assert http.client.delete(PATH).status_code == 204
    error_of(http.client.get(PATH), 404, "subscription_not_found")
    assert http.client.get(f"{TOPIC}/subscriptions").json() == {"subscriptions": []}


def test_what_is_put_again_changes_only_what_is_given(http: Running) -> None:
    http.publish("a/b", "x")
    put(http, type="shared", filter="key = 'a'", ack_timeout_ms=5000, max_redeliveries=3)
    changed = put(http, status=200, ack_timeout_ms=None, nack_delay_ms=0)
    assert changed["options"] == {
        "type": "shared",
        "filter": "key = 'a'",
        "nack_delay_ms": 0,
        "max_redeliveries": 3,
    }
    assert changed["filter"] == "key = 'a'"
    assert put(http, status=200)["options"] == changed["options"]


@pytest.mark.parametrize(
    ("start", "offset"),
    [("earliest", 0), ("latest", 3), ("2", 2), (1, 1), ("1970-01-01T00:00:00Z", 0), ({"time_us": 0}, 0)],
)
def test_a_new_subscription_begins_where_it_is_told(http: Running, start: Any, offset: int) -> None:
    http.publish("a/b", *"abc")
    assert put(http, start=start)["floor_offset"] == offset


@pytest.mark.parametrize(("position", "offset"), [("earliest", 0), ("latest", 3), (2, 2), ({"time_us": 0}, 0)])
def test_a_subscription_goes_on_from_another_place(http: Running, position: Any, offset: int) -> None:
    http.publish("a/b", *"abc")
    put(http, start=1)
    answer = http.client.post(f"{PATH}/seek", json={"position": position})
    assert (answer.status_code, answer.json()) == (200, {"offset": offset})
    assert described(http)["floor_offset"] == offset


@pytest.mark.parametrize("position", [{"tag": "none"}, {"snapshot_id": 5}, "tag:none", "snapshot:5", 7, "first"])
def test_a_place_that_is_not_there_is_refused(http: Running, position: Any) -> None:
    http.publish("a/b", *"abc")
    put(http, start=1)
    answer = http.client.post(f"{PATH}/seek", json={"position": position})
    assert answer.status_code in {400, 404, 416}, answer.text
    assert answer.json()["error"]["message"]
    assert described(http)["floor_offset"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {"type": "fair"},
        {"type": None},
        {"colour": "red"},
        {"filter": "key ="},
        {"filter": "colour = 'red'"},
        {"filter": "x" * 10_001},
        {"ack_timeout_ms": 0},
        {"ack_timeout_ms": "5"},
        {"nack_delay_ms": -1},
        {"max_redeliveries": -1},
        {"max_redeliveries": 3, "dead_letter_topic": "a/b"},
        {"dead_letter_topic": "../x"},
        {"start": "first"},
        {"start": -1},
        {"start": {"time_us": 0, "tag": "x"}},
        [],
    ],
)
def test_a_wrong_wish_is_refused(lasting_http: Running, body: Any) -> None:
    lasting_http.publish("a/b", "x")
    answer = lasting_http.client.request(
        "PUT", PATH, content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400, answer.text
    error_of(lasting_http.client.get(PATH), 404, "subscription_not_found")


def test_an_illegal_name_is_refused(lasting_http: Running) -> None:
    error_of(lasting_http.client.put(f"{TOPIC}/subscriptions/.s", json={}), 400, "invalid_name")
    error_of(lasting_http.client.put("/api/v1/topics/.a/b/subscriptions/s", json={}), 400, "invalid_name")


def test_what_is_missing_is_said_to_be_missing(http: Running) -> None:
    error_of(http.client.get("/api/v1/topics/a/none/subscriptions"), 404, "topic_not_found")
    http.publish("a/b", "x")
    error_of(http.client.get(PATH), 404, "subscription_not_found")
    error_of(http.client.delete(PATH), 404, "subscription_not_found")
    error_of(http.client.post(f"{PATH}/seek", json={"position": 0}), 404, "subscription_not_found")
    error_of(http.client.post(f"{PATH}/receive", json={}), 404, "subscription_not_found")
    error_of(http.client.post(f"{PATH}/ack", json={"consumer": "x", "offsets": [0]}), 404, "subscription_not_found")
    error_of(http.client.get(f"{PATH}/consumers/x"), 405, "method_not_allowed")


def test_a_type_cannot_change_while_somebody_receives(http: Running) -> None:
    http.publish("a/b", "x")
    put(http)
    assert http.client.post(f"{PATH}/receive", json={}).status_code == 200
    error_of(http.client.put(PATH, json={"type": "shared"}), 409, "subscription_busy")
    assert described(http)["type"] == "exclusive"


def test_figures_of_topics_have_those_of_their_subscriptions(http: Running) -> None:
    http.publish("a/b", *"abc")
    http.publish("a/c", "x")
    for number in range(3):
        put(http, f"{TOPIC}/subscriptions/s{number}", start=number)
    put(http, "/api/v1/topics/a/c/subscriptions/other")
    stats = exact(HttpStats, http.client.get("/api/v1/stats", params={"topic": "a/b"}).content)
    assert [(found.subscription, found.lag_messages) for found in stats.subscriptions] == [
        ("s0", 3),
        ("s1", 2),
        ("s2", 1),
    ]
    assert all(found.lag_bytes > 0 for found in stats.subscriptions)
    everything = exact(HttpStats, http.client.get("/api/v1/stats").content)
    assert {found.subscription for found in everything.subscriptions} == {"s0", "s1", "s2", "other"}


def test_progress_is_kept_when_the_door_and_the_storage_are_opened_again(open_door: OpenDoor) -> None:
    http = open_door()
    http.publish("a/b", *"abc")
    put(http)
    received = http.client.post(f"{PATH}/receive", json={"max_messages": 2}).json()
    assert http.client.post(f"{PATH}/ack", json={"consumer": received["consumer"], "cumulative": 1}).status_code == 204
    http.door.stop(5)
    http.storage.close()
    again = open_door()
    assert described(again)["floor_offset"] == 2
