"""What the driver remembers of a topic: its tables, which of them are fed together, and what waits for them."""

import pytest
from msgspec.structs import replace

from icestream.client import Client
from icestream.model.enums import StorageFormat
from icestream.model.names import TopicName, copy_of
from icestream.pipeline.sources import BackfillSource, backfill_before_log
from icestream.pipeline.state import CLEAN_SECONDS, JOINED_BYTES, RetryPause, Sink, TopicState
from icestream.protocol.pipeline import TopicBacklog

TOPIC = TopicName("a", "b")
COPY = copy_of(TOPIC)
LOG = TopicBacklog(str(TOPIC), "stream", 1, None, (), (), 100, 200, 100 * JOINED_BYTES, format=StorageFormat.BOTH)
"""A message is as large as tables that are fed together may be apart."""


def state(in_table: int, in_files: int, log: TopicBacklog = LOG) -> TopicState:
    sinks = [Sink(TOPIC, committed=in_table), Sink(COPY, committed=in_files)]
    return TopicState(log, RetryPause(1.0, 2.0), since=5.0, sinks=sinks)


def ranges(of: TopicState) -> list[tuple[int, int, tuple[TopicName, ...]]]:
    return [(one.start, one.end, one.tables) for one in of.waiting_ranges()]


@pytest.mark.parametrize("storage_format", list(StorageFormat))
def test_the_broker_says_which_tables_are_fed(storage_format: StorageFormat) -> None:
    made = TopicState(replace(LOG, format=storage_format), RetryPause(1.0, 2.0), since=0.0)
    assert tuple(sink.name for sink in made.sinks) == storage_format.fed(TOPIC)


def test_a_table_that_is_fed_on_is_remembered_when_the_format_changes() -> None:
    made = state(150, 150)
    table = made.sinks[0]
    made.update(replace(LOG, format=StorageFormat.ICEBERG), 0.0)
    assert made.sinks == [table]
    made.update(LOG, 0.0)
    assert made.sinks[0] is table
    assert made.committed is None, "the other is yet to be opened"


def test_tables_that_are_close_are_fed_together_from_the_one_behind_on() -> None:
    assert ranges(state(150, 151)) == [(150, 200, (TOPIC, COPY))]


def test_tables_that_are_far_apart_are_fed_in_turn() -> None:
    made = state(190, 110)
    assert ranges(made) == [(190, 200, (TOPIC,)), (110, 190, (COPY,))]
    first, late = made.waiting_ranges()
    assert first.since == made.since
    assert late.since == 0.0, "what one table has does not wait for more"
    made.choose(first)
    assert ranges(made) == [(110, 190, (COPY,)), (190, 200, (TOPIC,))]
    made.choose(late)
    assert ranges(made) == [(190, 200, (TOPIC,)), (110, 190, (COPY,))]


def test_what_no_log_has_is_looked_for_elsewhere_and_keeps_nobody_else_waiting() -> None:
    made = state(190, 10)
    assert made.cut_off == 10
    assert ranges(made) == [(190, 200, (TOPIC,))]
    made.older = backfill_before_log(LOG, 10, 190)
    assert not made.is_cut_off
    assert ranges(made)[1] == (10, 100, (COPY,)), "from where the log begins it is read there"


def test_messages_that_are_read_back_are_cut_by_their_mean_size() -> None:
    held = backfill_before_log(LOG, 0, 60)
    assert (held.start_offset, held.durable_end) == (0, 60)
    with Client() as client:
        cut = BackfillSource(client).cut_range
        assert cut(held, 0, 60, range_bytes=25 * JOINED_BYTES, max_ranges=10) == [25, 50, 60]
        assert cut(held, 0, 60, range_bytes=25 * JOINED_BYTES, max_ranges=2) == [25, 50]
        assert cut(held, 0, 60, range_bytes=1, max_ranges=1) == [1]


def test_folders_are_looked_through_first_after_trouble_and_now_and_then() -> None:
    sink = Sink(COPY)
    sink.table = object()  # type: ignore[assignment]  # nobody looks into it
    assert sink.needs_opening(0.0)
    sink.cleaned_at = 0.0
    assert not sink.needs_opening(CLEAN_SECONDS)
    assert sink.needs_opening(CLEAN_SECONDS + 1)
    assert not Sink(TOPIC, sink.table).needs_opening(CLEAN_SECONDS + 1)
    sink.cleaned_at = None
    assert sink.needs_opening(0.0)


@pytest.mark.parametrize(
    ("awaited_end", "awaited"),
    [(0, False), (10, False), (11, True), (20, True), (21, False)],
    ids=["nobody waits", "it is committed", "the first", "the last", "not published yet"],
)
def test_messages_are_awaited_if_writing_them_ends_a_wait(awaited_end: int, *, awaited: bool) -> None:
    backlog = TopicBacklog("a/b", "stream", 1, None, (), (), 0, 20, 1000, awaited_end)
    state = TopicState(backlog, RetryPause(1.0, 2.0), since=0.0, sinks=[Sink(backlog.name, committed=10)])
    waiting = state.first_waiting_range()
    assert waiting is not None
    assert waiting.awaited is awaited
