from hypothesis import given
from hypothesis import strategies as st

from icestream.cloud import ObjectDescriptor, Part
from icestream.model.names import TopicName
from icestream.pipeline.cloud_streams import CloudBacklog
from icestream.pipeline.sources import cut_objects


def backlog(sizes: list[tuple[int, int]]) -> CloudBacklog:
    """Objects of so many messages and bytes."""
    objects: list[ObjectDescriptor] = []
    first = 7
    for count, nbytes in sizes:
        last = first + count
        objects.append(
            ObjectDescriptor("k", "t", "s", 1, first, last, 0, 0, 1, nbytes, nbytes, 0, (Part(0, 0),), 0, 0, 0)
        )
        first = last
    total = sum(nbytes for _, nbytes in sizes)
    return CloudBacklog(TopicName("a", "b"), "s", 1, None, (), (), 7, first, total, objects=tuple(objects))


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 100_000)), min_size=1, max_size=8),
    st.integers(1, 50_000),
    st.integers(1, 20),
    st.data(),
)
def test_pieces_follow_on_each_other_and_reach_the_end_if_they_may(
    sizes: list[tuple[int, int]], piece_bytes: int, max_pieces: int, data: st.DataObject
) -> None:
    topic = backlog(sizes)
    start = data.draw(st.integers(topic.start_offset, topic.durable_end - 1))
    end = data.draw(st.integers(start + 1, topic.durable_end))
    ends = cut_objects(topic, start, end, piece_bytes=piece_bytes, max_pieces=max_pieces)
    assert ends == sorted(set(ends))
    assert start < ends[0]
    assert ends[-1] == end or (ends[-1] < end and len(ends) == max_pieces)


def test_pieces_have_about_the_bytes_that_were_asked_for() -> None:
    topic = backlog([(100, 10_000), (10, 10_000), (100, 10_000)])
    assert cut_objects(topic, 7, topic.durable_end, piece_bytes=10_000, max_pieces=9) == [107, 117, 217]
    assert cut_objects(topic, 7, topic.durable_end, piece_bytes=5_000, max_pieces=9) == [57, 107, 112, 117, 167, 217]
    assert cut_objects(topic, 57, topic.durable_end, piece_bytes=10_000, max_pieces=2) == [112, 167]
