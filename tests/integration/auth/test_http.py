"""Tenant by route at the HTTP door and its WebSocket: own, foreign, unknown token, no token."""

import json
from typing import Any

import httpx
import pytest
from starlette.routing import WebSocketRoute
from tests.integration.auth.conftest import ACME, FOREIGN, GLOBEX, NOWHERE, OWN, ROOT, UNKNOWN, Guarded
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from icestream.server.access import OPERATIONS, Access
from icestream.server.http import http_app
from icestream.server.http.requests import HttpOperation

API = "/api/v1/topics"
STRANGERS = [{}, {"Authorization": f"Bearer {UNKNOWN}"}, {"Authorization": f"Basic {ACME}"}, {"Authorization": ACME}]


@pytest.fixture
def operations(guarded: Guarded) -> list[HttpOperation]:
    broker = guarded.broker
    app = http_app(broker.storage, broker.metrics, version="0", ready=lambda: True, doors=dict)
    found: list[HttpOperation] = app.state.operations
    return found


def ask(http: httpx.Client, operation: HttpOperation, topic: str) -> httpx.Response:
    """An operation with an empty body; who may not is refused before it is looked at."""
    namespace, name = topic.split("/")
    path = operation.path.format(namespace=namespace, name=name, subscription="s", consumer="c", tenant=namespace)
    body: dict[str, Any] = {"json": {}} if operation.body is not None else {}
    return http.request(operation.method, path, **body)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("headers", STRANGERS)
def test_nobody_gets_in_by_any_route_without_a_token(
    guarded: Guarded, operations: list[HttpOperation], headers: dict[str, str]
) -> None:
    with guarded.http() as http:
        http.headers.update(headers)
        for operation in operations:
            answer = ask(http, operation, OWN)
            if OPERATIONS[operation.name] is Access.OPEN:
                assert answer.status_code in (200, 307), operation.name
                continue
            assert answer.status_code == 401, operation.name
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert error_of(answer)["code"] == "unauthenticated"
            assert UNKNOWN not in answer.text
            if operation.method == "GET":
                assert http.head(answer.request.url).status_code == 401
    assert guarded.root.describe_topic(OWN).durable_end == 3


def test_what_is_anothers_is_refused_whether_it_is_there_or_not(
    guarded: Guarded, operations: list[HttpOperation]
) -> None:
    with guarded.http(ACME) as http:
        for operation in operations:
            access = OPERATIONS[operation.name]
            if access is Access.TOPIC:
                there, nowhere = (ask(http, operation, topic) for topic in (FOREIGN, NOWHERE))
                assert (there.status_code, error_of(there)["code"]) == (403, "permission_denied"), operation.name
                assert (there.status_code, there.content) == (nowhere.status_code, nowhere.content)
            if access is Access.FULL:
                assert ask(http, operation, OWN).status_code == 403, operation.name
    assert guarded.root.describe_topic(FOREIGN).durable_end == 3


def test_tricks_with_the_path_lead_nowhere(guarded: Guarded) -> None:
    with guarded.http(ACME) as http:
        for path in ("acme%2F..%2Fglobex/events", "acme/..%2fglobex%2fevents", "ACME/events", "globex%2Fevents/x"):
            assert http.get(f"{API}/{path}").status_code in (400, 403, 404)


def test_two_tokens_are_none(guarded: Guarded) -> None:
    both = [("Authorization", f"Bearer {token}") for token in (ACME, GLOBEX)]
    with guarded.http() as http:
        assert http.get(API, headers=both).status_code == 401


def test_all_verbs_work_on_ones_own(guarded: Guarded) -> None:
    path = f"{API}/acme/over-http"
    with guarded.http(ACME) as http:
        assert http.post(API, json={"topic": "acme/over-http"}).status_code == 201
        assert http.get(path).status_code == 200
        assert http.patch(path, json={"retention_minutes": 60}).status_code == 200
        assert http.post(f"{path}/messages", json={"messages": [{"payload": "a"}]}).status_code == 200
        assert [one["payload"] for one in http.get(f"{path}/messages").json()["messages"]] == ["a"]
        assert http.put(f"{path}/subscriptions/s", json={}).status_code == 201
        received = http.post(f"{path}/subscriptions/s/receive", json={"timeout_ms": 10_000}).json()
        named = {"consumer": received["consumer"], "offsets": [0]}
        assert http.post(f"{path}/subscriptions/s/nack", json={**named, "delay_ms": 0}).status_code == 204
        again = http.post(
            f"{path}/subscriptions/s/receive", json={"consumer": received["consumer"], "timeout_ms": 10_000}
        ).json()
        assert [one["payload"] for one in again["messages"]] == ["a"]
        assert http.post(f"{path}/subscriptions/s/ack", json=named).status_code == 204
        with http.stream("GET", f"{path}/events?start=earliest") as events:
            assert any('"payload":"a"' in line for line in events.iter_lines() if line.startswith("data:"))
        with http.stream("GET", f"{path}/subscriptions/e/events?start=earliest") as events:
            assert any('"payload":"a"' in line for line in events.iter_lines() if line.startswith("data:"))
        answer = http.post("/api/v1/sql", json={"sql": 'SELECT count(*) AS n FROM acme."over-http"'})
        assert answer.json()["rows"] == [{"n": 1}]
        assert http.get("/api/v1/stats", params={"topic": "acme/over-http"}).status_code == 200
        assert http.delete(path).status_code == 204


def test_bodies_and_queries_name_ones_own_too(guarded: Guarded) -> None:
    with guarded.http(ACME) as http:
        for topic in (FOREIGN, NOWHERE):
            assert http.post(API, json={"topic": topic, "if_not_exists": True}).status_code == 403
            assert http.get("/api/v1/stats", params={"topic": topic}).status_code == 403
            put = http.put(f"{API}/{OWN}/subscriptions/d", json={"max_redeliveries": 0, "dead_letter_topic": topic})
            assert put.status_code == 403
        for tenant in ("globex", "nobody"):
            assert http.get(f"/api/v1/tenants/{tenant}").status_code == 403
    guarded.root.create_subscription(OWN, "d", max_redeliveries=0, dead_letter_topic=FOREIGN)
    with guarded.http(ACME) as http:
        assert http.post(f"{API}/{OWN}/subscriptions/d/receive", json={}).status_code == 403
        with http.stream("GET", f"{API}/{OWN}/subscriptions/d/events") as answer:
            assert answer.status_code == 403
        assert http.post(f"{API}/{OWN}/subscriptions/d/seek", json={"position": "earliest"}).status_code == 403
        assert http.delete(f"{API}/{OWN}/subscriptions/d").status_code == 403
    guarded.root.delete_subscription(OWN, "d")
    assert NOWHERE not in [topic.topic for topic in guarded.root.list_topics()]


def test_lists_have_what_is_its_own(guarded: Guarded) -> None:
    with guarded.http(ACME) as http, guarded.http(ROOT) as root:
        topics = [topic["topic"] for topic in http.get(API).json()["topics"]]
        assert OWN in topics
        assert all(topic.startswith("acme/") for topic in topics)
        assert http.get(API, params={"prefix": "globex"}).json()["topics"] == []
        figures = http.get("/api/v1/stats").json()
        assert all(topic["topic"].startswith("acme/") for topic in figures["topics"])
        assert all(one["topic"].startswith("acme/") for one in figures["subscriptions"])
        assert figures["broker"]["topics"] == len(topics)
        assert [one["tenant"] for one in http.get("/api/v1/tenants").json()["tenants"]] == ["acme"]
        assert FOREIGN in [topic["topic"] for topic in root.get(API).json()["topics"]]
        assert "icestream_" in root.get("/metrics").text


class TestWebSocket:
    def url(self, guarded: Guarded, topic: str) -> str:
        address = guarded.broker.doors["http"].replace("http:", "ws:")
        return f"{address}{API}/{topic}/subscriptions/socket/ws"

    @pytest.mark.parametrize(
        ("topic", "token", "status"),
        [(OWN, None, 401), (OWN, UNKNOWN, 401), (OWN, GLOBEX, 403), (FOREIGN, ACME, 403), (NOWHERE, ACME, 403)],
    )
    def test_who_may_not_is_refused_before_it_opens(
        self, guarded: Guarded, topic: str, token: str | None, status: int
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        with (
            pytest.raises(InvalidStatus) as caught,
            connect(self.url(guarded, topic), additional_headers=headers, proxy=None),
        ):
            pass
        assert caught.value.response.status_code == status

    def test_ones_own_opens(self, guarded: Guarded) -> None:
        headers = {"Authorization": f"Bearer {ACME}"}
        with connect(self.url(guarded, OWN), additional_headers=headers, proxy=None) as socket:
            assert json.loads(socket.recv(30))["subscribed"]["topic"] == OWN

    def test_every_socket_is_guarded(self, guarded: Guarded) -> None:
        broker = guarded.broker
        app = http_app(broker.storage, broker.metrics, version="0", ready=lambda: True, doors=dict)
        for route in app.routes:
            if not isinstance(route, WebSocketRoute):
                continue
            path = (
                route.path.format(namespace="acme", name="events", subscription="s")
                if "{path" not in route.path
                else "/x"
            )
            with (
                pytest.raises(InvalidStatus) as caught,
                connect(broker.doors["http"].replace("http:", "ws:") + path, proxy=None),
            ):
                pass
            assert caught.value.response.status_code in (401, 404)
