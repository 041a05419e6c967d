from io import StringIO
from typing import Any

from rich.console import Console

from icestream.cli.stats import broker_line, subscription_table, topic_table, trouble_lines
from icestream.cli.top import furthest_behind, rates


def stats(**topics: tuple[int, int]) -> dict[str, Any]:
    """The broker's answer for topics given as name = (end offset, bytes)."""
    return {
        "topics": [
            {
                "topic": name,
                "state": "open",
                "message_count": end,
                "bytes_stored": nbytes,
                "start_offset": 0,
                "durable_end": end,
                "segments": 1,
                "cached_messages": 0,
                "cache_hits": 3,
                "cache_misses": 1,
                "last_publish_time_us": None,
                "committed_offset": end // 2,
                "table_lag_messages": end - end // 2,
                "table_lag_seconds": 1.5,
            }
            for name, (end, nbytes) in topics.items()
        ],
        "broker": {"version": "1", "topics": len(topics), "cache_bytes": 0, "in_flight_bytes": 0, "open_files": 1},
    }


class TestRates:
    def test_are_differences_over_time_and_the_busiest_topic_is_first(self) -> None:
        found = rates(stats(a=(10, 100), b=(0, 0)), stats(a=(20, 300), b=(100, 1000)), 2.0)
        assert [(topic.topic, topic.messages_per_s, topic.bytes_per_s) for topic in found] == [
            ("b", 50.0, 500.0),
            ("a", 5.0, 100.0),
        ]

    def test_a_topic_that_is_new_or_was_made_again_has_none(self) -> None:
        found = rates(stats(again=(50, 500)), stats(again=(5, 50), new=(7, 70)), 1.0)
        assert [(topic.messages_per_s, topic.bytes_per_s) for topic in found] == [(0, 0), (0, 0)]

    def test_a_log_that_lost_old_segments_still_has_a_rate_of_messages(self) -> None:
        (topic,) = rates(stats(a=(50, 5000)), stats(a=(60, 1000)), 1.0)
        assert (topic.messages_per_s, topic.bytes_per_s) == (10.0, 0.0)


def test_the_table_of_topics_shows_every_figure() -> None:
    out = Console(file=StringIO(), width=200)
    out.print(topic_table(stats(events=(1234, 2048))["topics"]))
    assert isinstance(out.file, StringIO)
    text = out.file.getvalue()
    assert all(part in text for part in ("events", "open", "1,234", "2.00 KiB", "75%", "617, 1.50 s"))
    assert broker_line(stats(a=(1, 1))["broker"]) == "broker 1: 1 topics, cache 0 B, in flight 0 B, 1 open files"


def subscription(name: str, lag: int) -> dict[str, Any]:
    return {
        "topic": "shop/orders",
        "subscription": name,
        "type": "shared",
        "consumers": [{}, {}],
        "lag_messages": lag,
        "lag_bytes": 2048,
        "lag_seconds": 1.5,
        "unacknowledged": 12,
        "redeliveries": 3456,
        "dead_letters": 7,
    }


def test_the_table_of_subscriptions_shows_their_lag() -> None:
    out = Console(file=StringIO(), width=200)
    out.print(subscription_table([subscription("billing", 1234)]))
    assert isinstance(out.file, StringIO)
    (row,) = (" ".join(line.split()) for line in out.file.getvalue().splitlines() if "billing" in line)
    assert row == "shop/orders billing shared 2 1,234, 1.50 s 2.00 KiB 12 3,456 7"


def test_top_shows_a_few_subscriptions_and_those_that_are_furthest_behind() -> None:
    found = furthest_behind([subscription(f"s{lag}", lag) for lag in range(30)])
    assert [entry["lag_messages"] for entry in found] == list(range(29, 19, -1))


def test_stopped_uploads_are_told_from_those_that_are_tried_again() -> None:
    topics: list[dict[str, Any]] = [
        {"topic": "default/a", "upload_state": "failing", "upload_error": "no network"},
        {"topic": "default/b", "upload_state": "stopped", "upload_error": "the log is damaged"},
        {"topic": "default/c", "upload_state": "ok", "upload_error": None},
    ]
    assert trouble_lines(topics) == [
        "default/a: the last upload failed: no network",
        "default/b: uploads have stopped: the log is damaged",
    ]
