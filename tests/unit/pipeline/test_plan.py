from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from icestream.config import Settings
from icestream.model.names import TopicName
from icestream.pipeline.planner import (
    MIN_RANGE_BYTES,
    TASKS_PER_CORE,
    PassLimits,
    WaitingRange,
    WriteRange,
    allot,
    cut,
    due_at,
    pack,
    range_bytes,
    range_count,
    whole,
)

MIB = 1024 * 1024
GIB = 1024 * MIB
LIMITS = PassLimits.of(Settings())


def waiting(
    name: str = "t", messages: int = 10, nbytes: int = 1000, *, since: float = 0.0, has_failed: bool = False
) -> WaitingRange:
    return WaitingRange(TopicName("test", name), 100, 100 + messages, nbytes, since, has_failed=has_failed)


def cut_like_the_broker(topic: WaitingRange, size: int, count: int) -> list[int]:
    """Ends of pieces of a topic whose messages are all of one size."""
    step = max(1, round(size * topic.messages / topic.nbytes))
    return [min(topic.end, topic.start + step * (number + 1)) for number in range(count)][: -(-topic.messages // step)]


def plan_pass(due: Sequence[WaitingRange], limits: PassLimits, parallelism: int) -> list[list[WriteRange]]:
    chosen = allot(due, limits)
    size = range_bytes(sum(share for _, share in chosen), limits, parallelism)
    pieces: list[WriteRange] = []
    for topic, share in chosen:
        count = range_count(topic, share, size)
        if count == 1 and share == topic.nbytes:
            pieces.append(whole(topic))
        else:
            pieces += cut(topic, cut_like_the_broker(topic, -(-share // count), count))
    return pack(pieces, parallelism)


topics = st.lists(
    st.builds(
        waiting,
        name=st.sampled_from([f"t{number}" for number in range(20)]),
        messages=st.integers(1, 5_000_000),
        nbytes=st.integers(1, 4 * GIB),
        since=st.floats(0, 100),
        has_failed=st.booleans(),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda topic: topic.topic,
)
limits = st.builds(
    PassLimits,
    batch_messages=st.just(1),
    flush_seconds=st.just(1.0),
    memory_bytes=st.just(MIB),
    task_bytes=st.integers(64 * 1024, 256 * MIB),
    pass_bytes=st.integers(256 * MIB, 2 * GIB),
    pass_topics=st.integers(1, 30),
)


@given(topics, limits, st.integers(1, 16))
def test_ranges_of_a_topic_begin_at_its_ledger_and_follow_on_each_other(
    due: list[WaitingRange], limits: PassLimits, parallelism: int
) -> None:
    pieces = [piece for task in plan_pass(due, limits, parallelism) for piece in task]
    by_topic = {topic.topic: topic for topic in due}
    for name in {piece.topic for piece in pieces}:
        mine = sorted((piece for piece in pieces if piece.topic == name), key=lambda piece: piece.start)
        assert mine[0].start == by_topic[name].start
        assert all(piece.start < piece.end for piece in mine)
        assert all(one.end == following.start for one, following in pairwise(mine))
        assert mine[-1].end <= by_topic[name].end


@given(topics, limits, st.integers(1, 16))
def test_a_pass_stays_within_its_limits(due: list[WaitingRange], limits: PassLimits, parallelism: int) -> None:
    tasks = plan_pass(due, limits, parallelism)
    pieces = [piece for task in tasks for piece in task]
    one_message = max(topic.nbytes / topic.messages for topic in due)
    assert len({piece.topic for piece in pieces}) == min(len(due), limits.pass_topics)
    assert sum(piece.nbytes for piece in pieces) <= limits.pass_bytes + len(pieces) * (1 + one_message)
    assert all(piece.nbytes <= limits.task_bytes + 1 + one_message for piece in pieces)
    assert 0 < len(tasks) <= TASKS_PER_CORE * parallelism
    assert all(tasks)


@given(topics, limits, st.integers(1, 4))
def test_passes_in_a_row_cover_every_offset_exactly_once(
    due: list[WaitingRange], limits: PassLimits, parallelism: int
) -> None:
    left = {topic.topic: topic for topic in due}
    covered = {topic.topic: topic.start for topic in due}
    passes = 0
    while left and passes < 50:
        passes += 1
        for piece in sorted(
            (piece for task in plan_pass(list(left.values()), limits, parallelism) for piece in task),
            key=lambda piece: piece.start,
        ):
            assert piece.start == covered[piece.topic]
            covered[piece.topic] = piece.end
        for topic in due:
            reached = covered[topic.topic]
            if reached == topic.end:
                left.pop(topic.topic, None)
            else:
                share = (topic.end - reached) / topic.messages
                left[topic.topic] = WaitingRange(
                    topic.topic, reached, topic.end, max(1, round(topic.nbytes * share)), 0.0, served=float(passes)
                )
    assert left == {} or sum(topic.nbytes for topic in due) > 20 * limits.pass_bytes


def test_a_small_topic_is_not_kept_waiting_by_a_large_backlog() -> None:
    small, large = waiting("small", nbytes=1000, since=50.0), waiting("large", 1_000_000, 100 * GIB)
    shares = dict(allot([large, small], LIMITS))
    assert shares[small] == small.nbytes
    assert shares[large] == LIMITS.pass_bytes - small.nbytes


def test_topics_beyond_the_limit_of_a_pass_have_their_turn_in_the_next() -> None:
    limits = PassLimits(1, 1.0, MIB, MIB, GIB, pass_topics=1)
    first, second = waiting("first", since=1.0), waiting("second", since=2.0)
    served = WaitingRange(first.topic, 100, 110, 1000, 1.0, served=10.0)
    assert [topic for topic, _ in allot([second, first], limits)] == [first]
    assert [topic for topic, _ in allot([second, served], limits)] == [second]


def test_a_tiny_topic_is_one_piece_and_a_tiny_pass_one_task() -> None:
    topic = waiting(messages=1000, nbytes=300_000)
    assert plan_pass([topic], LIMITS, 8) == [[whole(topic)]]


def test_a_large_topic_keeps_all_cores_busy_for_the_same_time() -> None:
    topic = waiting(messages=2_000_000, nbytes=530_000_000)
    tasks = plan_pass([topic], LIMITS, 2)
    assert len(tasks) == 4
    sizes = [sum(piece.nbytes for piece in task) for task in tasks]
    assert max(sizes) - min(sizes) < 1000


def test_what_is_not_worth_a_file_of_its_own_is_not_cut() -> None:
    topic = waiting(messages=1000, nbytes=MIN_RANGE_BYTES)
    assert plan_pass([topic], LIMITS, 16) == [[whole(topic)]]


def test_many_small_topics_are_shared_out_evenly() -> None:
    tasks = plan_pass([waiting(f"t{number}", nbytes=10_000) for number in range(200)], LIMITS, 2)
    assert [len(task) for task in tasks] == [100, 100]


def test_a_suspect_topic_gets_one_piece_of_a_task_size() -> None:
    topic = waiting(messages=1_000_000, nbytes=GIB, has_failed=True)
    ((piece,),) = plan_pass([topic], LIMITS, 4)
    assert piece.start == topic.start
    assert piece.nbytes <= LIMITS.task_bytes


def test_few_messages_are_due_when_the_oldest_has_waited_for_the_flush_interval() -> None:
    limits = PassLimits(100, 2.0, MIB, MIB, GIB, 10)
    assert due_at(waiting(since=10.0), limits) == 12.0


def test_a_pass_begins_earlier_by_the_time_it_takes_but_at_most_by_a_quarter_of_the_interval() -> None:
    limits = PassLimits(100, 2.0, MIB, MIB, GIB, 10)
    assert due_at(waiting(since=10.0), limits, pass_seconds=0.25) == 11.75
    assert due_at(waiting(since=10.0), limits, pass_seconds=60.0) == 11.5


def test_many_messages_or_bytes_are_due_at_once() -> None:
    limits = PassLimits(100, 2.0, MIB, MIB, GIB, 10)
    assert due_at(waiting(messages=100, since=10.0), limits) == 10.0
    assert due_at(waiting(nbytes=MIB, since=10.0), limits) == 10.0


def test_what_somebody_waits_for_is_due_at_once() -> None:
    limits = PassLimits(100, 2.0, MIB, MIB, GIB, 10)
    assert due_at(replace(waiting(since=10.0), awaited=True), limits) == 10.0
