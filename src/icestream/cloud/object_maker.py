"""Making one object of an extent of the log: steps 2 and 3 of an upload."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

from icestream.cloud.descriptor import ObjectDescriptor, damaged_object, inline_index
from icestream.cloud.names import ObjectName
from icestream.cloud.packing import READ_BYTES, Extent, FrameSource, Packing
from icestream.cloud.store import ObjectStore
from icestream.cloud.trailer import Trailer, check_trailer
from icestream.model.clock import Clock, now_us
from icestream.model.errors import ClosedError, ConflictError, DamagedError, ObjectExistsError, UnavailableError
from icestream.model.names import TopicName


class ObjectMaker:
    """`record` gives the topic's settings, and `cancelled` says whether to break off."""

    def __init__(
        self,
        topic: TopicName,
        stream_id: str,
        source: FrameSource,
        store: ObjectStore,
        *,
        record: Callable[[], dict[str, Any]] = dict,
        cancelled: Callable[[], bool] = lambda: False,
        read_bytes: int = READ_BYTES,
        clock: Clock = now_us,
    ) -> None:
        self.topic = topic
        self.stream_id = stream_id
        self.source = source
        self.store = store
        self._record = record
        self._cancelled = cancelled
        self._read_bytes = read_bytes
        self._clock = clock

    def make(self, key: str, extent: Extent) -> ObjectDescriptor:
        """Steps 2 and 3; an object that an earlier try finished is taken as it is."""
        if (adopted := self.adopt(key, extent)) is not None:
            return adopted
        packing = Packing(self.source, extent, self._read_bytes)
        writer = self.store.writer(key)
        try:
            with closing(iter(packing)) as pieces:
                for piece in pieces:
                    self._check_cancelled()
                    writer.write(piece)
            trailer = self._trailer(key, packing).to_bytes()
            writer.write(trailer)
            descriptor = self._descriptor(key, packing, packing.data_bytes + len(trailer))
            writer.finish()
        except ObjectExistsError as error:
            writer.abort()
            if (adopted := self.adopt(key, extent)) is not None:
                return adopted
            raise ConflictError(str(error), operation="upload", place=key, retryable=True) from error
        except BaseException:
            writer.abort()
            raise
        try:
            self._read_back(descriptor)
        except DamagedError as error:
            raise UnavailableError(
                f"the object that was just sent is not what was sent: {error.message}",
                operation="upload",
                place=f"{self.store.name}: {key}",
                remedy="it is sent again",
            ) from error
        return descriptor

    def adopt(self, key: str, extent: Extent) -> ObjectDescriptor | None:
        """The object of that name if it holds just the extent's bytes; one that does not is removed."""
        info = self.store.stat(key)
        if info is None:
            return None
        packing = Packing(self.source, extent, self._read_bytes)
        with closing(iter(packing)) as pieces:
            for _ in pieces:
                self._check_cancelled()
        expected = self._descriptor(key, packing, info.size)
        try:
            made = self._read_back(expected)
        except DamagedError:
            self.store.delete(key)
            return None
        return replace(expected, created_us=made.descriptor.created_us)

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise ClosedError("the upload was broken off", operation="upload", place=str(self.topic))

    def _read_back(self, descriptor: ObjectDescriptor) -> Trailer:
        """Step 3; raises `DamagedError` where the store has something else than what was sent."""
        info = self.store.stat(descriptor.key)
        found = info.size if info is not None else 0
        if found != descriptor.size or found <= descriptor.data_bytes:
            raise damaged_object(descriptor, f"the object has {found} bytes, {descriptor.size} were sent")
        length = descriptor.size - descriptor.data_bytes
        return check_trailer(self.store.read(descriptor.key, descriptor.data_bytes, length), descriptor)

    def _trailer(self, key: str, packing: Packing) -> Trailer:
        _, durable_end = self.source.bounds()
        return Trailer(
            packing.index,
            self._descriptor(key, packing, 0, indexed=False),
            schemas=self.source.schemas,
            record=self._record(),
            durable_end=durable_end,
            producers=packing.producers,
        )

    def _descriptor(self, key: str, packing: Packing, size: int, *, indexed: bool = True) -> ObjectDescriptor:
        extent = packing.extent
        return ObjectDescriptor(
            key=key,
            topic=str(self.topic),
            stream_id=self.stream_id,
            epoch=_epoch_of(key, self.source.epoch),
            first_offset=extent.first_offset,
            end_offset=extent.end_offset,
            first_time_us=packing.first_time_us,
            last_time_us=packing.last_time_us,
            frame_count=packing.frame_count,
            data_bytes=packing.data_bytes,
            size=size,
            checksum=packing.checksum,
            parts=tuple(packing.parts),
            file_seq=extent.end.file_seq,
            byte_pos=extent.end.byte_pos,
            created_us=self._clock(),
            index=inline_index(packing.index) if indexed else None,
        )


def _epoch_of(key: str, own: int) -> int:
    name = ObjectName.parse(key)
    return name.epoch if name is not None else own
