"""The native door's actions for the pipeline: what waits, how to share it out, and what has become of it."""

from collections.abc import Callable
from typing import Any, TypeAlias

from icestream.model.callers import Caller
from icestream.model.errors import InvalidRequestError
from icestream.model.names import TopicName
from icestream.server.backlog import Backlog
from icestream.server.pieces import cut_range
from icestream.server.pipeline_figures import PASS_FIELDS, SUMMED, TOPIC_FIELDS, PipelineFigures
from icestream.server.requests import take
from icestream.storage import IcebergStorage
from icestream.wal import check_offset

Fields: TypeAlias = dict[str, Any]
Handler: TypeAlias = tuple[Callable[[Fields], Fields], frozenset[str], str]
_MAX_PIECES = 10_000


class PipelineActions:
    def __init__(self, storage: IcebergStorage, figures: PipelineFigures) -> None:
        self._storage = storage
        self._backlog = Backlog(storage)
        self.figures = figures

    def handlers(self) -> dict[str, Handler]:
        """Each action's handler, the fields it takes and what it is for."""
        return {
            "backlog": (
                self._ask_backlog,
                frozenset({"topics", "mark", "wait_ms"}),
                "What topics hold for the pipeline",
            ),
            "cut_range": (
                self._cut_range,
                frozenset({"topic", "start", "end", "piece_bytes", "max_pieces"}),
                "A range of a topic in pieces of about equal bytes",
            ),
            "committed": (
                self._committed,
                frozenset({"topic", "stream_id", "committed_offset", "snapshot_id"}),
                "A hint that messages have reached a topic's table",
            ),
            "pipeline_report": (
                self._report,
                frozenset({"pass", "topics"}),
                "Figures and failures of the pipeline",
            ),
        }

    def stats(self, topic: TopicName | None, caller: Caller) -> Fields:
        """Of topics that the caller may see; sums, which are over all of them, for who may see all."""
        topics = self.figures.topics(topic)
        if caller.may_do_everything:
            return {**self.figures.sums(), "topics": topics}
        return {
            "topics": {name: found for name, found in topics.items() if caller.may(TopicName.parse(name).namespace)}
        }

    def _ask_backlog(self, fields: Fields) -> Fields:
        wait_ms = take(fields, "wait_ms", int, operation="backlog", default=0)
        return self._backlog.ask(
            take(fields, "topics", str, operation="backlog", default="*"),
            mark=take(fields, "mark", str, operation="backlog"),
            wait_seconds=max(0, wait_ms) / 1000,
        )

    def _cut_range(self, fields: Fields) -> Fields:
        operation = "cut_range"
        log = self._storage.topic(_topic(fields, operation)).log
        start = take(fields, "start", int, operation=operation, required=True)
        end = take(fields, "end", int, operation=operation, required=True)
        check_offset(log, start)
        check_offset(log, end)
        piece_bytes = take(fields, "piece_bytes", int, operation=operation, required=True)
        max_pieces = take(fields, "max_pieces", int, operation=operation, default=_MAX_PIECES)
        if piece_bytes < 1 or not 1 <= max_pieces <= _MAX_PIECES:
            raise InvalidRequestError(f"piece_bytes is 1 or more, max_pieces 1 to {_MAX_PIECES}", operation=operation)
        return {"ends": cut_range(log, start, end, piece_bytes=piece_bytes, max_pieces=max_pieces)}

    def _committed(self, fields: Fields) -> Fields:
        operation = "committed"
        topic = self._storage.topic(_topic(fields, operation))
        stream_id = take(fields, "stream_id", str, operation=operation, required=True)
        take(fields, "committed_offset", int, operation=operation, required=True)
        take(fields, "snapshot_id", int, operation=operation)
        if stream_id == topic.record.stream_id:
            self._storage.table_watch.hint(topic.name)
        return {}

    def _report(self, fields: Fields) -> Fields:
        operation = "pipeline_report"
        passed = take(fields, "pass", dict, operation=operation, default={})
        topics = take(fields, "topics", list, operation=operation, default=[])
        _check_report(passed, PASS_FIELDS)
        for figures in topics:
            _check_report(figures, TOPIC_FIELDS)
            _topic(figures, operation)
        self.figures.report(passed, topics)
        return {}


def _check_report(figures: Any, allowed: frozenset[str]) -> None:
    """Refuse what could not be added up, or shown."""
    operation = "pipeline_report"
    if not isinstance(figures, dict) or figures.keys() - allowed:
        raise InvalidRequestError(f"a report is an object with {', '.join(sorted(allowed))}", operation=operation)
    for name, value in figures.items():
        kind = str if name in ("topic", "error") else (int, float)
        missing = value is None and name not in SUMMED
        if not missing and (not isinstance(value, kind) or isinstance(value, bool)):
            raise InvalidRequestError(f"{name} must not be {value!r:.80}", operation=operation)


def _topic(fields: Fields, operation: str) -> TopicName:
    return TopicName.parse(take(fields, "topic", str, operation=operation, required=True))
