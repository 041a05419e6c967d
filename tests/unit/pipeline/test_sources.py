from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cloud_objects import FragileStore

from icestream.cloud import ObjectDescriptor, SegmentPart
from icestream.config import load_settings
from icestream.model.errors import DeadlineError
from icestream.pipeline.cloud_backlog import CloudBacklog
from icestream.pipeline.sources import MessageSources, backfill_before_log, cut_objects
from icestream.protocol.pipeline import PipelineBacklog


def backlog(sizes: list[tuple[int, int]]) -> CloudBacklog:
    """Objects of so many messages and bytes."""
    objects: list[ObjectDescriptor] = []
    first = 7
    for count, nbytes in sizes:
        last = first + count
        objects.append(
            ObjectDescriptor("k", "t", "s", 1, first, last, 0, 0, 1, nbytes, nbytes, 0, (SegmentPart(0, 0),), 0, 0, 0)
        )
        first = last
    total = sum(nbytes for _, nbytes in sizes)
    return CloudBacklog("a/b", "s", 1, None, (), (), 7, first, total, objects=tuple(objects))


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 100_000)), min_size=1, max_size=8),
    st.integers(1, 50_000),
    st.integers(1, 20),
    st.data(),
)
def test_ranges_follow_on_each_other_and_reach_the_end_if_they_may(
    sizes: list[tuple[int, int]], range_bytes: int, max_ranges: int, data: st.DataObject
) -> None:
    topic = backlog(sizes)
    start = data.draw(st.integers(topic.start_offset, topic.durable_end - 1))
    end = data.draw(st.integers(start + 1, topic.durable_end))
    ends = cut_objects(topic, start, end, range_bytes=range_bytes, max_ranges=max_ranges)
    assert ends == sorted(set(ends))
    assert start < ends[0]
    assert ends[-1] == end or (ends[-1] < end and len(ends) == max_ranges)


def test_ranges_have_about_the_bytes_that_were_asked_for() -> None:
    topic = backlog([(100, 10_000), (10, 10_000), (100, 10_000)])
    assert cut_objects(topic, 7, topic.durable_end, range_bytes=10_000, max_ranges=9) == [107, 117, 217]
    assert cut_objects(topic, 7, topic.durable_end, range_bytes=5_000, max_ranges=9) == [57, 107, 112, 117, 167, 217]
    assert cut_objects(topic, 57, topic.durable_end, range_bytes=10_000, max_ranges=2) == [112, 167]


def test_the_cloud_can_tell_where_another_table_has_to_fill_in() -> None:
    found = backfill_before_log(backlog([(100, 10_000)]), 2, 5)
    assert (found.topic, found.start_offset, found.durable_end) == ("a/b", 2, 5)


class SilentHost:
    """A broker whose host drops packets: every question takes the time that it is given. `Client` and clock."""

    url = "grpc://silent"

    def __init__(self) -> None:
        self.now = 0.0
        self.timeouts: list[float | None] = []
        self.is_back = False

    def backlog(self, _topics: str, *, mark: str | None, wait_ms: int, timeout: float | None) -> PipelineBacklog:
        self.timeouts.append(timeout)
        if self.is_back:
            return PipelineBacklog("broker", complete=True, topics=[])
        self.now += timeout if timeout is not None else 30.0
        raise DeadlineError(f"no answer to {mark} and {wait_ms}")


def test_a_host_that_drops_packets_holds_the_cloud_up_now_and_then_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("icestream.cloud.opendal_store.open_object_store", lambda *_: FragileStore())
    settings = load_settings(
        overrides={
            "data_dir": tmp_path,
            "cloud.backend": "fs",
            "cloud.root": "/nowhere",
            "pipeline.broker_timeout_ms": 10_000,
        }
    )
    host = SilentHost()
    with MessageSources(settings, host, lambda: host.now) as sources:  # type: ignore[arg-type]

        def look() -> str:
            return sources.backlog("*", mark=None, wait_ms=0).mark

        with pytest.raises(DeadlineError):
            look()
        assert sources.is_away
        with pytest.raises(DeadlineError):
            look()
        host.now += 5
        assert look().startswith("cloud-")
        assert (sources.is_on_cloud, sources.is_away, host.timeouts) == (True, False, [None, 5.0, 5.0])
        for _ in range(20):
            look()
        assert len(host.timeouts) == 3, "it was asked a moment ago"
        for _ in range(10):
            host.now += 1
            look()
        assert host.timeouts == [None, 5.0, 5.0, 5.0, 5.0]
        host.is_back = True
        host.now += 5
        assert look() == "broker"
        assert not sources.is_on_cloud
        look()
        assert host.timeouts[-1] is None
