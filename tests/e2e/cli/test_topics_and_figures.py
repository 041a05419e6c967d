import json
import subprocess
from collections.abc import Callable

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
Publish = Callable[[str, bytes], None]


def test_a_topic_from_create_to_delete(icestream: Run, topic: str) -> None:
    made = icestream("topic", "create", topic, "--ack", "memory", "--retention-minutes", "60")
    assert (made.returncode, made.stdout) == (0, f"{topic} is ready\n".encode())
    assert icestream("topic", "create", topic).returncode == 1
    assert icestream("topic", "create", topic, "--if-not-exists").returncode == 0

    described = json.loads(icestream("topic", "update", topic, "--retention-mb", "5", "--json").stdout)
    assert (described["ack"], described["retention_minutes"], described["retention_mb"]) == ("memory", 60, 5)
    assert json.loads(icestream("topic", "describe", topic, "--json").stdout) == described
    text = icestream("topic", "describe", topic).stdout.decode()
    assert "60 min, 5 MiB" in text

    listed = json.loads(icestream("topic", "list", "--prefix", topic, "--json").stdout)
    assert listed == {"topics": [described]}
    assert topic in icestream("topic", "list").stdout.decode()

    unanswered = icestream("topic", "delete", topic)
    assert unanswered.returncode == 1
    assert b"Delete" in unanswered.stderr
    assert icestream("topic", "delete", topic, stdin=b"y\n").returncode == 0
    assert json.loads(icestream("topic", "list", "--prefix", topic, "--json").stdout) == {"topics": []}


def test_a_description_tells_how_the_table_is_laid_out(icestream: Run, topic: str) -> None:
    layout = ("--partition-by", "day(publish_time)", "--sort-by", "key", "--sort-by", "offset")
    assert icestream("topic", "create", topic, *layout).returncode == 0
    lines = icestream("topic", "describe", topic).stdout.decode().splitlines()
    assert "partitions day(publish_time)" in lines
    assert "sorted by  key, offset" in lines


def test_stats_count_what_was_published(icestream: Run, publish: Publish, topic: str) -> None:
    publish(topic, b"m\n" * 1234)
    answer = json.loads(icestream("stats", topic, "--json").stdout)
    (figures,) = answer["topics"]
    assert (figures["topic"], figures["message_count"], figures["durable_end"]) == (topic, 1234, 1234)
    assert answer["subscriptions"] == []
    text = icestream("stats").stdout.decode()
    assert topic in text
    assert "1,234" in text
    assert "broker " in text


def test_top_shows_one_view(icestream: Run, publish: Publish, topic: str) -> None:
    publish(topic, b"m\n")
    text = icestream("top", "--once", "--interval", "0.1")
    assert text.returncode == 0
    assert topic in text.stdout.decode()
    look = json.loads(icestream("top", "--once", "--json", "--interval", "0.1").stdout)
    assert {"topic": topic, "messages_per_s": 0.0}.items() <= next(
        found for found in look["topics"] if found["topic"] == topic
    ).items()
