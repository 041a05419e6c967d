"""Which log a topic has, and how its table's files lie, where not everything is known at once."""

from typing import Any, NoReturn, cast

from icestream.client import Client
from icestream.model.errors import TopicNotFoundError
from icestream.model.names import TopicName
from icestream.protocol.pipeline import PipelineBacklog, TopicBacklog
from icestream.storage.verify import BrokerLogs, Verification
from icestream.storage.verify.tables import TableLayoutAudit
from icestream.table.contents import StoredFile, TableContents

TOPIC = TopicName("default", "events")


class OpeningBroker:
    """Answers as a broker that still opens logs, a few questions long."""

    def __init__(self, *answers: PipelineBacklog) -> None:
        self.answers = list(answers)

    def backlog(self, _topics: str) -> PipelineBacklog:
        return self.answers.pop(0)

    def describe_topic(self, topic: TopicName) -> NoReturn:
        raise TopicNotFoundError("there is no such topic", place=str(topic))


def test_a_broker_that_still_opens_logs_is_asked_again() -> None:
    backlog = TopicBacklog(str(TOPIC), "stream-1", 1, None, (), (), 0, 5, 100)
    broker = OpeningBroker(PipelineBacklog("a-0", False, []), PipelineBacklog("a-1", True, [backlog]))
    view = BrokerLogs(cast("Client", broker)).view(TOPIC)
    assert view is not None
    assert view.durable_end == 5
    nothing = OpeningBroker(PipelineBacklog("a-0", False, []), PipelineBacklog("a-1", True, []))
    assert BrokerLogs(cast("Client", nothing)).view(TOPIC) is None
    assert nothing.answers == []


def overlaps(*files: tuple[int, int]) -> Verification:
    fields: dict[str, Any] = {"delete_files": 0, "snapshots": (), "manifests": 1, "target_file_bytes": 1}
    stored = tuple(StoredFile(f"{number}", (0,), 1, 1, *file) for number, file in enumerate(files))
    report = Verification(TOPIC)
    TableLayoutAudit(
        TableContents(stored, is_partitioned=False, sort_by=(), offset_column="offset", **fields), report
    ).check_overlaps()
    return report


def test_files_that_overlap_are_found_and_those_without_bounds_left_out() -> None:
    assert overlaps((0, 4), (5, 9)).is_sound
    assert [(found.first_offset, found.last_offset) for found in overlaps((0, 9), (5, 12)).findings] == [(5, 9)]
    assert overlaps((-1, -1), (-1, -1), (0, 4), (5, 9)).is_sound
