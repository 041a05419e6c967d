"""Reading a range of a topic's offsets out of undecoded frames, each once and in order, as the broker would send it.

Nothing of a frame that lies behind the range is decoded: what is wrong there does not concern who reads up to it.
"""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from icestream.client.frames import FrameReader
from icestream.model.errors import DamagedError
from icestream.model.frames import MESSAGES_SCHEMA_ID, Frame
from icestream.model.lost_ranges import NOTHING_LOST, LostRanges
from icestream.model.messages import MESSAGE_SCHEMA, conform, slice_from, stream_batches, stream_schema
from icestream.model.schema_text import decode_schema


class FrameRange:
    """Takes `start` to before `end` out of frames. For one reading."""

    def __init__(self, start: int, end: int) -> None:
        self._end = end
        self.next_offset = start
        self.lost = 0
        """Messages of the range that are lost for good; they are in no batch."""
        self.lost_ranges = NOTHING_LOST

    def use_schemas(self, schemas: Mapping[int, str]) -> None:
        """The topic's own schemas by id; the newest is that of all batches."""
        own = {number: decode_schema(text) for number, text in schemas.items()}
        self._schemas = {MESSAGES_SCHEMA_ID: MESSAGE_SCHEMA, **own}
        self._stream_schema = stream_schema(self._schemas[max(self._schemas)])

    def take(self, frames: Iterable[Frame]) -> Iterator[pa.RecordBatch]:
        wanted = [frame for frame in frames if frame.base_offset < self._end]
        for batch in stream_batches(wanted, self._schemas):
            rows = slice_from(batch, self.next_offset, self._end)
            if rows.num_rows:
                self._pass_over(rows.column(0)[0].as_py())
                self.next_offset += rows.num_rows
                yield conform(rows, self._stream_schema)
        if wanted:
            self._pass_over(min(self._end, wanted[-1].end_offset))

    def _pass_over(self, offset: int) -> None:
        """What lies before an offset and has not come is lost: the frames are there without their messages."""
        if offset > self.next_offset:
            self.lost += offset - self.next_offset
            self.lost_ranges |= LostRanges.of([(self.next_offset, offset)])
            self.next_offset = offset


class BrokerFrames(FrameRange):
    """The broker's frames of the range. Iterate over `batches` once, to its end."""

    def __init__(self, reader: FrameReader, start: int, end: int, *, place: str) -> None:
        super().__init__(start, end)
        self._reader = reader
        self._place = place

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The range as batches. Raises unless every offset came, or is known to be lost."""
        for frames in self.frames():
            self.use_schemas(self._reader.schemas)
            yield from self.take(frames)
        if self.next_offset != self._end:
            raise DamagedError(
                f"the broker ended the range at {self.next_offset}, before {self._end}",
                operation="read frames",
                place=self._place,
                retryable=True,
            )

    def frames(self) -> Iterator[list[Frame]]:
        """The frames that hold the range, undecoded."""
        yield from self._reader
