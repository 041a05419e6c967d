import pickle
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from icestream.client import BrokerEndpoint
from icestream.model.names import TopicName
from icestream.pipeline.one_pass import run_job
from icestream.pipeline.planner import WriteRange, pack
from icestream.pipeline.spark.session import JobFailedError
from icestream.pipeline.tasks import FromBroker, Work, Written

NAMES = [TopicName("test", f"t{number}") for number in range(8)]


def work(topic: TopicName) -> Work:
    return Work(FromBroker(BrokerEndpoint("grpc://nowhere")), topic, "stream", (), 1)  # nobody writes here


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 100_000_000)), min_size=1, max_size=30),
    st.sets(st.sampled_from(NAMES)),
    st.integers(1, 4),
)
def test_topics_that_kill_workers_fail_alone_and_all_others_are_written(
    sizes: list[tuple[TopicName, int]], poison: set[TopicName], parallelism: int
) -> None:
    ends: dict[TopicName, int] = {}
    pieces = []
    for topic, nbytes in sizes:
        start = ends.get(topic, 0)
        ends[topic] = start + 10
        pieces.append(WriteRange(topic, start, start + 10, nbytes))

    def run(parcels: Sequence[bytes]) -> list[Written]:
        works: list[Work] = [found for parcel in parcels for found in pickle.loads(parcel)]
        if poison & {found.topic for found in works}:
            raise JobFailedError("a worker died")
        return [Written(found.topic, start, end) for found in works for start, end in found.ranges]

    written = run_job(pack(pieces, parallelism), {topic: work(topic) for topic in NAMES}, run)
    sound = sorted((one.topic, one.start, one.end) for one in written if one.error is None)
    failed = sorted((one.topic, one.start, one.end) for one in written if one.error is not None)
    assert sound == sorted((piece.topic, piece.start, piece.end) for piece in pieces if piece.topic not in poison)
    assert failed == sorted((topic, 0, 10) for topic in ends if topic in poison)
