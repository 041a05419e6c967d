"""Topics in the cloud over HTTP, with objects in a directory."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.integration.http.conftest import PATIENCE_SECONDS, OpenDoor, Running, error_of
from tests.integration.http.exact import exact

from icestream.model.errors import DeadlineError
from icestream.protocol.admin import CloudObjectPage, FlushProgress, RecoverableTopics, TopicDescription
from icestream.server.http.models import HttpStats

TOPIC = "/api/v1/topics/shop/orders"


@pytest.fixture
def cloudy(open_door: OpenDoor, tmp_path: Path) -> Running:
    return open_door(
        cloud={"backend": "fs", "root": str(tmp_path / "objects")},
        uploader={"enabled": True, "interval_seconds": 86_400},
    )


def flush(http: Running) -> FlushProgress:
    answer = http.client.post(f"{TOPIC}/flush", json={})
    assert answer.status_code == 200, answer.text
    flushed = exact(FlushProgress, answer.json())
    while not flushed.done:
        answer = http.client.post(f"{TOPIC}/flush", json={"target": flushed.target})
        flushed = exact(FlushProgress, answer.json())
    return flushed


def test_what_is_published_is_uploaded_and_listed(cloudy: Running) -> None:
    cloudy.publish("shop/orders", "a", "b")
    assert flush(cloudy).uploaded_offset == 2
    topic = exact(TopicDescription, cloudy.client.get(TOPIC).json())
    assert (topic.storage, topic.uploaded_offset, topic.cloud_start_offset) == ("table", 2, 0)
    cloudy.publish("shop/orders", "c")
    flush(cloudy)
    page = exact(CloudObjectPage, cloudy.client.get(f"{TOPIC}/objects", params={"limit": 1}).json())
    assert [one.first_offset for one in page.objects] == [0]
    assert page.next_after == 0
    rest = exact(CloudObjectPage, cloudy.client.get(f"{TOPIC}/objects", params={"after": 0}).json())
    assert [(one.first_offset, one.end_offset) for one in rest.objects] == [(2, 3)]
    assert rest.next_after is None
    assert rest.head is not None
    assert (rest.head.object_count, rest.head.uploaded_end) == (2, 3)


def test_figures_and_metrics_tell_how_far_the_cloud_is(cloudy: Running) -> None:
    cloudy.publish("shop/orders", "a", "b")
    flush(cloudy)
    cloudy.publish("shop/orders", "c")
    (figures,) = exact(HttpStats, cloudy.client.get("/api/v1/stats").json()).topics
    assert (figures.uploaded_offset, figures.upload_lag_messages, figures.cloud_objects) == (2, 1, 1)
    assert figures.upload_lag_bytes is not None
    assert figures.upload_lag_bytes > 0
    assert figures.last_upload_us is not None
    assert (figures.uploads, figures.upload_failures, figures.upload_error) == (1, 0, None)
    lines = cloudy.client.get("/metrics").text.splitlines()
    for name, value in (("uploaded_offset", 2), ("upload_lag_messages", 1), ("cloud_objects", 1), ("uploads_total", 1)):
        assert f'icestream_topic_{name}{{topic="shop/orders"}} {value}.0' in lines
    assert 'icestream_topic_upload_failing{topic="shop/orders"} 0.0' in lines


def test_a_log_topic_is_made_where_there_are_uploads(cloudy: Running) -> None:
    made = cloudy.client.post("/api/v1/topics", json={"topic": "shop/raw", "storage": "log"})
    assert (made.status_code, made.json()["storage"]) == (201, "log")
    error_of(cloudy.client.post("/api/v1/topics", json={"topic": "shop/x", "storage": "disk"}), 400, "invalid_request")


def test_without_an_object_store_it_is_said_what_to_set(http: Running) -> None:
    http.publish("shop/orders", "a")
    refused = error_of(http.client.post(f"{TOPIC}/flush", json={}), 400, "invalid_request")
    assert "cloud.backend" in refused["remedy"]
    error_of(http.client.get(f"{TOPIC}/objects"), 400, "invalid_request")
    error_of(http.client.post(f"{TOPIC}/recover", json={}), 400, "invalid_request")
    found = exact(RecoverableTopics, http.client.get("/api/v1/recoverable").json())
    assert (found.lost, found.recoverable) == ([], [])


def test_what_is_not_durable_yet_cannot_be_waited_for(cloudy: Running) -> None:
    cloudy.publish("shop/orders", "a", "b")
    refused = error_of(cloudy.client.post(f"{TOPIC}/flush", json={"target": 3}), 400, "invalid_request")
    assert "the durable end 2" in refused["message"]
    assert cloudy.client.post(f"{TOPIC}/flush", json={"target": 2}).json()["done"]


def test_who_waits_for_uploads_leaves_threads_to_the_others(cloudy: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """More requests than the door has threads, to an object store that does not answer."""
    go, all_busy = threading.Event(), threading.Semaphore(0)
    begun: list[str] = []

    def wait(_storage: object, name: object, *_: object) -> Any:
        begun.append(str(name))
        all_busy.release()
        assert go.wait(PATIENCE_SECONDS)
        raise DeadlineError("the object store does not answer")

    monkeypatch.setattr("icestream.server.http.topics.flush_topic", wait)
    with ThreadPoolExecutor(60) as callers:
        answers = [callers.submit(cloudy.client.post, f"{TOPIC}/flush", json={}) for _ in range(60)]
        try:
            for _ in range(12):
                assert all_busy.acquire(timeout=PATIENCE_SECONDS)
            assert cloudy.client.get("/api/v1/topics").status_code == 200
            assert cloudy.client.get("/metrics").status_code == 200
            assert len(begun) == 12
        finally:
            go.set()
        assert {answer.result().status_code for answer in answers} == {504}


def test_a_second_recovery_is_refused_and_not_kept_waiting(cloudy: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun = threading.Event(), threading.Event()

    def recover(*_: object) -> Any:
        begun.set()
        assert go.wait(PATIENCE_SECONDS)
        raise DeadlineError("the object store does not answer")

    monkeypatch.setattr("icestream.storage.lost_topics.TopicRecovery.run", recover)
    with ThreadPoolExecutor(1) as caller:
        first = caller.submit(cloudy.client.post, "/api/v1/topics/shop/lost/recover", json={})
        try:
            assert begun.wait(PATIENCE_SECONDS)
            for name in ("lost", "other"):
                refused = cloudy.client.post(f"/api/v1/topics/shop/{name}/recover", json={})
                assert error_of(refused, 409, "conflict")["retryable"]
        finally:
            go.set()
        assert first.result().status_code == 504


@pytest.mark.parametrize("body", [{"wait_ms": -1}, {"wait_ms": 10_001}, {"target": -1}, {"timeout": 1}])
def test_what_is_no_request_to_flush_is_refused(lasting_http: Running, body: dict[str, int]) -> None:
    error_of(lasting_http.client.post(f"{TOPIC}/flush", json=body), 400, "invalid_request")
