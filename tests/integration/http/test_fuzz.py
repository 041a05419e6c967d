"""Whatever comes, the answer is an answer: never a fault of the broker's own, never a broken connection."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_from_bytes

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration.http.conftest import running_door

ERROR_FIELDS = {"code", "message", "operation", "place", "remedy", "retryable", "details"}
SUBSCRIPTION = "/api/v1/topics/a/b/subscriptions/s"
PLACES = (
    *("/api/v1/topics", "/api/v1/topics/a/b", "/api/v1/topics/a/b/messages", "/api/v1/stats", "/api/v1/doors", "/"),
    *("/api/v1/topics/a/b/subscriptions", SUBSCRIPTION, f"{SUBSCRIPTION}/ws", f"{SUBSCRIPTION}/consumers/x"),
    *(f"{SUBSCRIPTION}/{action}" for action in ("seek", "receive", "ack", "nack")),
)
FIELDS = (
    *("topic", "ack", "schema", "retention_minutes", "retention_mb", "if_not_exists"),
    *("messages", "producer", "sequence", "payload", "payload_base64", "key", "key_base64", "attributes"),
    *("type", "start", "filter", "ack_timeout_ms", "nack_delay_ms", "max_redeliveries", "dead_letter_topic"),
    *("position", "consumer", "name", "max_messages", "max_bytes", "offsets", "ranges", "cumulative", "delay_ms"),
)
PARAMETERS = ("start", "max_messages", "max_bytes", "prefix", "limit", "after", "topic", "producer", "sequence", "ack")

fuzz = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

names = st.sampled_from(FIELDS) | st.text(max_size=20)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(["a/b", "disk", "memory", "eA=="]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
bodies = st.one_of(
    st.binary(max_size=200),
    st.dictionaries(names, values, max_size=5).map(lambda value: json.dumps(value).encode()),
    st.lists(st.dictionaries(names, values, max_size=4), max_size=3).map(
        lambda value: json.dumps({"messages": value}).encode()
    ),
)
queries = st.lists(
    st.tuples(
        st.sampled_from(PARAMETERS) | st.text(max_size=10),
        st.text(max_size=20) | st.integers(-5, 1 << 66).map(str) | st.sampled_from(["earliest", "latest"]),
    ),
    max_size=3,
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_door(tmp_path_factory.mktemp("fuzz"), server={"max_topics": 50}) as running:
        yield running.client


def check(answer: httpx.Response) -> None:
    assert answer.status_code < 500, (answer.request.url, answer.text)
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == ERROR_FIELDS


@fuzz
@given(parts=st.lists(st.binary(max_size=12), max_size=6), prefix=st.sampled_from(["/", "/api/", "/api/v1/topics/"]))
def test_any_path_is_answered(client: httpx.Client, parts: list[bytes], prefix: str) -> None:
    check(client.get(f"http://127.0.0.1:{client.base_url.port}{prefix}{'/'.join(map(quote_from_bytes, parts))}"))


@fuzz
@given(method=st.sampled_from(["GET", "DELETE", "HEAD", "PUT", "X"]), place=st.sampled_from(PLACES), query=queries)
def test_any_query_is_answered(client: httpx.Client, method: str, place: str, query: list[tuple[str, str]]) -> None:
    answer = client.request(method, place, params=[(name, value) for name, value in query if value.isprintable()])
    if method != "HEAD":
        check(answer)
    assert answer.status_code < 500


@fuzz
@given(raw=st.binary(max_size=60).filter(lambda raw: b"#" not in raw), place=st.sampled_from(PLACES))
def test_any_raw_query_is_answered(client: httpx.Client, raw: bytes, place: str) -> None:
    check(client.get(f"{place}?{quote_from_bytes(raw, safe='=&;+%')}"))


@fuzz
@given(
    body=bodies,
    kind=st.sampled_from(["application/json", "application/vnd.apache.arrow.stream", "text/plain", "a;b"]),
    place=st.sampled_from(PLACES),
    method=st.sampled_from(["POST", "PATCH", "PUT"]),
)
def test_any_body_is_answered(client: httpx.Client, body: bytes, kind: str, place: str, method: str) -> None:
    check(client.request(method, place, content=body, headers={"Content-Type": kind}))


@fuzz
@given(body=bodies)
def test_any_json_is_answered_by_the_routes_that_take_json(client: httpx.Client, body: bytes) -> None:
    headers: dict[str, Any] = {"Content-Type": "application/json"}
    check(client.post("/api/v1/topics", content=body, headers=headers))
    check(client.patch("/api/v1/topics/a/b", content=body, headers=headers))
    check(client.post("/api/v1/topics/a/b/messages", content=body, headers=headers))
    check(client.get("/api/v1/topics/a/b/messages"))
    check(client.put(SUBSCRIPTION, content=body, headers=headers))
    for action in ("seek", "receive", "ack", "nack"):
        check(client.post(f"{SUBSCRIPTION}/{action}", content=body, headers=headers))
