"""What the driver makes of what the broker says."""

import pytest

from icestream.client.pipeline import TopicBacklog
from icestream.model.names import TopicName
from icestream.pipeline.state import RetryPause, Sink, TopicState


@pytest.mark.parametrize(
    ("awaited_end", "awaited"),
    [(0, False), (10, False), (11, True), (20, True), (21, False)],
    ids=["nobody waits", "it is committed", "the first", "the last", "not published yet"],
)
def test_messages_are_awaited_if_writing_them_ends_a_wait(awaited_end: int, *, awaited: bool) -> None:
    backlog = TopicBacklog(TopicName("a", "b"), "stream", 1, None, (), (), 0, 20, 1000, awaited_end)
    state = TopicState(backlog, RetryPause(1.0, 2.0), since=0.0, sinks=[Sink(backlog.topic, committed=10)])
    waiting = state.waiting()
    assert waiting is not None
    assert waiting.awaited is awaited
