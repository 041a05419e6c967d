"""A disk without room, as an HTTP client and whoever watches the broker see it."""

import pytest
from tests.integration.http.conftest import Running, error_of

from icestream.storage import disk


def test_publishing_is_refused_while_the_disk_is_full_and_nothing_else_is(
    http: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    http.publish("a/b", "one")
    watched = http.storage.disk
    with monkeypatch.context() as full:
        full.setattr(watched, "_measure", lambda _: 1_000_000)
        assert not watched.look()
        answer = http.client.post("/api/v1/topics/a/b/messages", json={"messages": [{"payload": "two"}]})
        error = error_of(answer, 507, "disk_full")
        assert error["retryable"] is True
        assert error["details"] == {"free_bytes": 1_000_000, "min_free_bytes": 256 << 20}
        assert answer.headers["retry-after"] == "1"
        assert [message["payload"] for message in http.read("a/b")["messages"]] == ["one"]
        assert http.client.get("/readyz").status_code == 200  # it serves all but publishing
        assert http.client.get("/api/v1/stats").json()["broker"]["disk_full"] is True
        assert "icestream_disk_full 1.0" in http.client.get("/metrics").text
    assert watched.look()
    assert watched.free_bytes == pytest.approx(disk.free_bytes(http.storage.settings.wal.dir), rel=0.1)
    assert http.publish("a/b", "two")["base_offset"] == 1
    assert "icestream_disk_full 0.0" in http.client.get("/metrics").text
