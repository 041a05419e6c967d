"""DoGet of a topic's frames as the log has them, undecoded: for who must handle a body that cannot be opened.

Each batch has a row a frame. The first frame may begin before the offset that was asked for, the last one end behind
the range's end. Without bodies it tells where frames begin and end.
"""

import json
from collections.abc import Callable, Iterator

import pyarrow as pa

from icestream.model.callers import Caller
from icestream.model.errors import InvalidRequestError, OffsetOutOfRangeError
from icestream.model.frame_batches import frame_batch, frame_schema
from icestream.server.requests import parse_object, take
from icestream.storage import IcebergStorage
from icestream.wal import LogReader, check_offset

_OPERATION = "read frames"
_TICKET_FIELDS = frozenset({"topic", "start", "end", "frames"})
_KINDS = ("headers", "whole")


def asks_for_frames(ticket: bytes) -> bool:
    """Whether a ticket is one of these; whatever is wrong with it otherwise is told later."""
    if b'"frames"' not in ticket:
        return False
    try:
        fields = json.loads(ticket)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and "frames" in fields


class FrameStream:
    """Checked when it is made; nothing is read before the first chunk is asked for."""

    def __init__(self, storage: IcebergStorage, ticket: bytes, caller: Caller, cancelled: Callable[[], bool]) -> None:
        fields = parse_object(ticket, operation=_OPERATION, allowed=_TICKET_FIELDS)
        name = take(fields, "topic", str, operation=_OPERATION, required=True)
        topic = storage.topic(caller.check_topic(name, operation=_OPERATION))
        kind = take(fields, "frames", str, operation=_OPERATION, required=True)
        if kind not in _KINDS:
            raise InvalidRequestError(f"frames is one of {', '.join(_KINDS)}", operation=_OPERATION)
        self._log = topic.log
        self._start = take(fields, "start", int, operation=_OPERATION, required=True)
        self._end = take(fields, "end", int, operation=_OPERATION, required=True)
        check_offset(self._log, self._start)
        if not self._start <= self._end <= self._log.durable_end:
            raise OffsetOutOfRangeError(
                f"the range ends at {self._end}, the topic at {self._log.durable_end}",
                operation=_OPERATION,
                place=str(topic.name),
            )
        self._bodies = kind == "whole"
        self._cancelled = cancelled
        self.schema = frame_schema(topic.record.schemas())

    def chunks(self) -> Iterator[pa.RecordBatch]:
        reader = LogReader(self._log, self._start)
        try:
            while reader.offset < self._end and not self._cancelled():
                frames = [frame for frame in reader.read() if frame.base_offset < self._end]
                if not frames:
                    return
                yield frame_batch(frames, self.schema, bodies=self._bodies)
        finally:
            reader.close()
