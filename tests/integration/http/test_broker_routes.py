"""Health, readiness, figures and addresses."""

from prometheus_client.parser import text_string_to_metric_families
from tests.integration.http.conftest import Running, error_of
from tests.integration.http.exact import exact

from icestream.server.http.models import Doors, HttpStats


def samples(http: Running) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = http.client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_health_is_fine_as_long_as_the_process_answers(http: Running) -> None:
    http.ready = False
    assert http.client.get("/healthz").json() == {"status": "alive"}
    assert http.client.head("/healthz").status_code == 200


def test_readiness_follows_the_broker(http: Running) -> None:
    assert http.client.get("/readyz").status_code == 200
    http.ready = False
    answer = http.client.get("/readyz")
    assert error_of(answer, 503, "unavailable")["retryable"] is True
    assert answer.headers["retry-after"] == "1"


def test_doors_are_named_with_their_addresses(http: Running) -> None:
    answer = exact(Doors, http.client.get("/api/v1/doors").json())
    assert answer.doors == {"http": http.door.address}


def test_metrics_count_what_was_published_and_read(http: Running) -> None:
    http.publish("default/a", "one", "two", "three", producer="p", sequence=0)
    http.publish("default/a", "one", "two", "three", producer="p", sequence=0)
    error_of(http.client.post("/api/v1/topics/default/a/messages", json={"messages": [{}]}), 400, "invalid_message")
    http.read("default/a")
    found = samples(http)
    topic = (("topic", "default/a"),)
    assert found["icestream_published_batches_total", ()] == 2
    assert found["icestream_published_messages_total", ()] == 6
    assert found["icestream_published_bytes_total", ()] > 0
    assert found["icestream_duplicate_batches_total", ()] == 1
    assert found["icestream_refused_batches_total", (("code", "invalid_message"),)] == 1
    assert found["icestream_publish_ack_seconds_count", ()] == 2
    assert found["icestream_wal_commit_frames_count", ()] == 1
    assert found["icestream_wal_sync_seconds_count", ()] == 1
    assert found["icestream_delivered_messages_total", ()] == 3
    assert found["icestream_topic_durable_end", topic] == 3
    assert found["icestream_topic_start_offset", topic] == 0
    assert found["icestream_topic_wal_segments", topic] == 1
    assert found["icestream_topic_wal_bytes", topic] > 0
    assert found["icestream_topic_cache_hits_total", topic] == 1
    assert found["icestream_topic_state", (("state", "open"), *topic)] == 1
    assert found["icestream_topic_state", (("state", "failed"), *topic)] == 0
    assert found["icestream_open_streams", (("door", "http"),)] == 1  # this very request
    assert found["icestream_in_flight_bytes", ()] == 0


def test_metrics_are_given_as_openmetrics_to_whom_asks(http: Running) -> None:
    answer = http.client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_metrics_survive_a_closed_storage(http: Running) -> None:
    http.storage.close()
    assert ("icestream_in_flight_bytes", ()) in samples(http)


def test_stats_cover_the_topics_in_use(http: Running) -> None:
    http.publish("default/a", "one", "two")
    http.storage.topics.create("default/idle")
    stats = exact(HttpStats, http.client.get("/api/v1/stats").json())
    assert (stats.broker.version, stats.broker.topics, stats.broker.open_topics) == ("1.2.3", 2, 1)
    assert [(topic.topic, topic.message_count) for topic in stats.topics] == [("default/a", 2)]


def test_stats_of_one_topic_open_its_log(http: Running) -> None:
    http.storage.topics.create("default/idle")
    stats = exact(HttpStats, http.client.get("/api/v1/stats", params={"topic": "default/idle"}).json())
    assert [topic.durable_end for topic in stats.topics] == [0]
    error_of(http.client.get("/api/v1/stats", params={"topic": "default/none"}), 404, "topic_not_found")


def test_stats_come_in_pages(http: Running) -> None:
    for name in "abc":
        http.publish(f"default/{name}", "x")
    first = exact(HttpStats, http.client.get("/api/v1/stats", params={"limit": 2}).json())
    rest = exact(HttpStats, http.client.get("/api/v1/stats", params={"after": str(first.next_after)}).json())
    assert [topic.topic for topic in (*first.topics, *rest.topics)] == ["default/a", "default/b", "default/c"]
    assert rest.next_after is None
