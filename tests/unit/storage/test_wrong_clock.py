"""A clock that jumps ahead pins publish times; that is said, and can be ended."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.reading import TOPIC, Stage, rest_of

from icestream.cloud import LogPosition
from icestream.config import RetentionSettings
from icestream.model.errors import InvalidRequestError
from icestream.model.offsets import StartPosition
from icestream.server.metrics import BrokerMetrics
from icestream.storage.cloud.log_source import LogSource
from icestream.storage.cloud.retention import published_before
from icestream.storage.housekeeping import ClockWatch
from icestream.storage.retention import prune_logs

SECOND = 1_000_000
DECADE = 10 * 365 * 86_400 * SECOND
START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * SECOND


class Clocked(Stage):
    """A stage whose clock is set by the test."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.now = START
        self._set()

    def _set(self) -> None:
        object.__setattr__(self.topic.log.context, "clock", lambda: self.now)

    def restart(self) -> None:
        super().restart()
        self._set()

    def send(self, count: int) -> None:
        for _ in range(count):
            self.now += SECOND
            self.publish([b"x" * 900])

    def times(self) -> list[int]:
        found = []
        reader = self.reader(0)
        while batches := reader.read():
            found += [row.value for batch in batches for row in batch.column("publish_time")]
        reader.close()
        return found

    def offset_at(self, time_us: int) -> int:
        return self.topic.start_offset_of(StartPosition.timestamp(time_us))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Clocked]:
    """Ten messages, ten while the clock is ten years ahead, ten after it was corrected: pinned."""
    opened = Clocked(tmp_path)
    opened.send(10)
    opened.now += DECADE
    opened.send(10)
    opened.now -= DECADE
    opened.send(10)
    yield opened
    opened.close()


def reset(stage: Clocked) -> int:
    return stage.topic.log.reset_clock().offset


def test_times_that_are_ahead_are_said(stage: Clocked) -> None:
    (figures,) = stage.storage.stats(TOPIC)
    assert figures.publish_time_ahead_seconds == pytest.approx(DECADE / SECOND, abs=20)
    watch = ClockWatch()
    with capture_logs() as events:
        for _ in range(3):
            watch.look([stage.topic.log])
    assert [event["event"] for event in events] == ["publish_time_ahead"]
    assert events[0]["topic"] == TOPIC
    assert events[0]["ahead_seconds"] == pytest.approx(DECADE / SECOND, abs=20)
    scraped = BrokerMetrics(stage.storage).render()[0].decode()
    (line,) = (one for one in scraped.splitlines() if one.startswith("icestream_topic_publish_time_ahead_seconds{"))
    assert float(line.rpartition(" ")[2]) > DECADE / SECOND - 20


def test_a_reset_lets_times_follow_the_clock_also_after_a_restart(stage: Clocked) -> None:
    assert reset(stage) == 30
    assert stage.storage.stats(TOPIC)[0].publish_time_ahead_seconds is None
    stage.restart()  # before any message has a time after the reset
    stage.send(5)
    stage.restart()
    stage.send(5)
    times = stage.times()
    assert len(times) == 40
    assert times[29] > START + DECADE
    assert times[30:] == [START + (30 + number) * SECOND for number in range(1, 11)]
    with pytest.raises(InvalidRequestError, match="not ahead"):
        reset(stage)


@pytest.mark.parametrize("committed", [0, 20, 40])
def test_a_start_by_time_finds_messages_by_the_clock_that_they_were_published_by(
    stage: Clocked, committed: int
) -> None:
    """In log and table, with the pinned messages in either."""
    reset(stage)
    stage.send(20)
    if committed:
        stage.commit(committed)
        stage.prune()
    expected = {number: number - 1 for number in (1, 5, 10)} | {number: number - 1 for number in range(31, 51)}
    for second, offset in expected.items():
        assert stage.offset_at(START + second * SECOND) == offset, second
    assert stage.offset_at(START + 20 * SECOND) == 10  # while the clock was wrong: the first message since
    assert stage.offset_at(START + 1000 * SECOND) == 50


def test_pinned_messages_grow_old_by_those_after_the_reset(stage: Clocked) -> None:
    hour = RetentionSettings(time_minutes=60)
    stage.commit()
    later = START + int(timedelta(hours=3).total_seconds()) * SECOND
    assert prune_logs([stage.topic], hour, later) > 0
    kept = stage.topic.log.start_offset
    assert kept <= 12  # nobody can tell the age of the pinned ones
    reset(stage)
    stage.send(10)
    stage.commit()
    assert prune_logs([stage.topic], hour, later) > 0
    assert stage.topic.log.start_offset >= 30
    assert len(rest_of(stage.reader(0))) == 40


def test_ages_are_bounded_by_what_comes_later() -> None:
    assert published_before([1, 9, 9, 5], [2, 9, 4, 6]) == [1, 4, 4, 5]
    assert published_before([3, 0, 9], [0, 8, 0]) == [3, 0, 9]
    assert published_before([], []) == []


def test_times_never_go_back_within_a_segment_or_an_object(stage: Clocked) -> None:
    reset(stage)
    stage.send(10)
    log = stage.topic.log
    assert 30 in [*(one.header.base_offset for one in log.snapshot.sealed), log.snapshot.active.header.base_offset]
    source = LogSource(log)
    first = source.plan(0, LogPosition(0, 0), None)
    assert first is not None
    assert first.end_offset == 30
    second = source.plan(30, first.end, None)
    assert second is not None
    assert second.end_offset == 40


def test_a_clock_that_is_wrong_again_is_reset_again(stage: Clocked) -> None:
    reset(stage)
    stage.send(3)
    stage.now += DECADE
    stage.send(3)
    stage.now -= DECADE
    assert reset(stage) == 36
    stage.send(3)
    assert [offset for offset, _ in rest_of(stage.reader(0))] == list(range(39))
    assert stage.offset_at(stage.now) == 38
