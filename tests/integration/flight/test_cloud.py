"""Topics in the cloud against `docs/protocol.md`, with a plain Flight client and objects in a directory."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.flight.conftest import OpenDoor, Running
from tests.integration.flight.plain import PlainClient, failure, messages

TOPIC = "flight/cloudy"
HEAD = {
    "stream_id",
    "epoch",
    "first_offset",
    "uploaded_end",
    "file_seq",
    "byte_pos",
    "reserved_end",
    "object_count",
    "object_bytes",
    "updated_us",
}
REPORT = {
    "topic",
    "stream_id",
    "epoch",
    "start_offset",
    "next_offset",
    "cloud_first_offset",
    "cloud_end",
    "committed_offset",
    "lost_first",
    "lost_end",
    "objects",
    "bytes",
    "unreadable",
    "sources",
    "message",
}
Cloudy = Callable[..., Running]


@pytest.fixture
def cloudy(open_door: OpenDoor, tmp_path: Path) -> Cloudy:
    """A broker whose topics are uploaded when somebody asks for it."""

    def start(**settings: Any) -> Running:
        cloud = {"backend": "fs", "root": str(tmp_path / "objects")}
        uploader = {"enabled": True, "interval_seconds": 86_400}
        return open_door(**({"cloud": cloud, "uploader": uploader} | settings))

    return start


def publish(client: PlainClient, topic: str, *payloads: bytes) -> None:
    stream = client.publishing()
    assert stream.publish(messages(*payloads), topic=topic)["count"] == len(payloads)
    stream.finish()


def flush(client: PlainClient, topic: str = TOPIC) -> dict[str, Any]:
    answer = client.action("flush_topic", topic=topic, wait_ms=10_000)
    while not answer["done"]:
        answer = client.action("flush_topic", topic=topic, wait_ms=10_000, target=answer["target"])
    return answer


def test_what_is_durable_is_in_the_cloud_after_a_flush(cloudy: Cloudy) -> None:
    client = cloudy().client
    made = client.action("create_topic", topic=TOPIC)
    assert (made["storage"], made["uploaded_offset"], made["cloud_start_offset"]) == ("table", 0, None)
    publish(client, TOPIC, b"a", b"b", b"c")
    assert flush(client) == {"topic": TOPIC, "target": 3, "uploaded_offset": 3, "done": True}
    described = client.action("describe_topic", topic=TOPIC)
    assert (described["uploaded_offset"], described["cloud_start_offset"]) == (3, 0)


def test_objects_are_listed_in_pages_with_the_head(cloudy: Cloudy) -> None:
    client = cloudy().client
    client.action("create_topic", topic=TOPIC)
    for payload in (b"a", b"b", b"c"):
        publish(client, TOPIC, payload)
        flush(client)
    first = client.action("cloud_objects", topic=TOPIC, limit=2)
    rest = client.action("cloud_objects", topic=TOPIC, limit=2, after=first["next_after"])
    for page in (first, rest):
        assert page["head"].keys() == HEAD
        assert page["head"]["object_count"] == 3
    assert [one["first_offset"] for one in first["objects"] + rest["objects"]] == [0, 1, 2]
    assert rest["next_after"] is None
    assert failure(client.action, "cloud_objects", topic=TOPIC, limit=0)["code"] == "invalid_request"


def test_a_topic_without_a_table(cloudy: Cloudy) -> None:
    client = cloudy().client
    made = client.action("create_topic", topic=TOPIC, storage="log", retention_minutes=60)
    assert made["storage"] == "log"
    assert failure(client.action, "create_topic", topic="flight/x", storage="cloud")["code"] == "invalid_request"


def test_without_an_object_store_everything_says_so(client: PlainClient) -> None:
    client.action("create_topic", topic=TOPIC)
    for action in ("flush_topic", "cloud_objects"):
        error = failure(client.action, action, topic=TOPIC)
        assert error["code"] == "invalid_request"
        assert "cloud.backend" in error["remedy"]
    assert failure(client.action, "create_topic", topic="flight/x", storage="log")["code"] == "invalid_request"
    assert client.action("recoverable_topics") == {"lost": [], "recoverable": []}


def test_a_broker_that_uploads_nothing_cannot_flush(cloudy: Cloudy) -> None:
    client = cloudy(uploader={"enabled": False}).client
    client.action("create_topic", topic=TOPIC)
    assert "uploader.enabled" in failure(client.action, "flush_topic", topic=TOPIC)["remedy"]


def test_a_topic_that_only_the_cloud_knows_is_recovered(cloudy: Cloudy, tmp_path: Path) -> None:
    first = cloudy()
    first.client.action("create_topic", topic=TOPIC)
    publish(first.client, TOPIC, b"a", b"b")
    flush(first.client)
    first.close()
    shutil.rmtree(tmp_path / "data-0")
    second = cloudy()
    client = second.client
    assert client.action("recoverable_topics") == {"lost": [], "recoverable": [TOPIC]}
    assert failure(client.action, "describe_topic", topic=TOPIC)["code"] == "topic_not_found"
    report = client.action("recover_topic", topic=TOPIC)
    assert report.keys() == REPORT
    assert (report["cloud_first_offset"], report["cloud_end"], report["objects"]) == (0, 2, 1)
    assert (report["lost_first"], report["unreadable"], report["epoch"]) == (2, [], 2)  # nobody knows of a clean end
    publish(client, TOPIC, b"c")
    assert client.payloads(TOPIC) == [b"a", b"b", b"c"]
    assert failure(client.action, "recover_topic", topic=TOPIC)["code"] == "invalid_request"
    assert failure(client.action, "recover_topic", topic="flight/none")["code"] == "topic_not_found"
