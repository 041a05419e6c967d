"""Reading a range of a topic's offsets from cloud objects, each once and in order, as the broker would send it."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from icestream.cloud import ObjectDescriptor, ObjectMap, ObjectStore
from icestream.cloud.given import Given
from icestream.cloud.read_pool import ReadPool
from icestream.cloud.reader import CloudReader
from icestream.model.errors import DamagedError
from icestream.model.frames import MESSAGES_SCHEMA_ID, Frame
from icestream.model.lost_ranges import NOTHING_LOST, LostRanges
from icestream.model.messages import MESSAGE_SCHEMA, conform, slice_from, stream_batches, stream_schema
from icestream.model.schema_text import decode_schema


class CloudRange:
    """Reads `start` to before `end`. Iterate over `batches` once, to its end."""

    def __init__(
        self,
        store: ObjectStore,
        objects: Iterable[ObjectDescriptor],
        schemas: Mapping[int, str],
        start: int,
        end: int,
        *,
        pool: ReadPool,
        place: str,
    ) -> None:
        self._reader = CloudReader(ObjectMap(Given(objects)), store, start, end=end, pool=pool)
        own = {number: decode_schema(text) for number, text in schemas.items()}
        self._schemas = {MESSAGES_SCHEMA_ID: MESSAGE_SCHEMA, **own}
        self._stream_schema = stream_schema(self._schemas[max(self._schemas)])
        self._end = end
        self._place = place
        self.next_offset = start
        self.lost = 0
        """Messages of the range that are lost for good; they are in no batch."""
        self.lost_ranges = NOTHING_LOST

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The range as batches. Raises unless every offset came, or is known to be lost."""
        try:
            while self.next_offset < self._end:
                frames = self._reader.read()
                if not frames:
                    raise DamagedError(
                        f"no object has offset {self.next_offset}",
                        operation="read cloud objects",
                        place=self._place,
                        retryable=True,
                    )
                yield from self._taken(frames)
        finally:
            self._reader.close()

    def _taken(self, frames: list[Frame]) -> Iterator[pa.RecordBatch]:
        for batch in stream_batches(frames, self._schemas):
            rows = slice_from(batch, self.next_offset, self._end)
            if rows.num_rows:
                self._pass_over(rows.column(0)[0].as_py())
                self.next_offset += rows.num_rows
                yield conform(rows, self._stream_schema)
        self._pass_over(min(self._end, frames[-1].end_offset))

    def _pass_over(self, offset: int) -> None:
        """What lies before an offset and has not come is lost: the objects have it without its messages."""
        if offset > self.next_offset:
            self.lost += offset - self.next_offset
            self.lost_ranges |= LostRanges.of([(self.next_offset, offset)])
            self.next_offset = offset
