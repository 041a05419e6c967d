"""Reading a range of a topic's offsets from cloud objects, each once and in order, as the broker would send it."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from icestream.cloud import ObjectDescriptor, ObjectMap, ObjectStore
from icestream.cloud.given import Given
from icestream.cloud.read_pool import ReadPool
from icestream.cloud.reader import CloudReader
from icestream.model.errors import DamagedError
from icestream.model.frames import Frame
from icestream.pipeline.frame_range import FrameRange


class CloudRange(FrameRange):
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
        super().__init__(start, end)
        self.use_schemas(schemas)
        self._reader = CloudReader(ObjectMap(Given(objects)), store, start, end=end, pool=pool)
        self._place = place

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The range as batches. Raises unless every offset came, or is known to be lost."""
        for frames in self.frames():
            yield from self.take(frames)

    def frames(self) -> Iterator[list[Frame]]:
        """The frames that hold the range, undecoded; the last ones may lie behind it."""
        offset = self.next_offset
        try:
            while offset < self._end:
                frames = self._reader.read()
                if not frames:
                    raise DamagedError(
                        f"no object has offset {offset}",
                        operation="read cloud objects",
                        place=self._place,
                        retryable=True,
                    )
                offset = frames[-1].end_offset
                yield frames
        finally:
            self._reader.close()
