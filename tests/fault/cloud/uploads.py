"""A topic on a simulated disk that is uploaded to a store in memory, and that can be cut off at any step.

Every step that can be seen from outside is counted: each call of the object store, each of the metadata store, each
change of the uploader's notes, before it happens and, where it changes something, when it has. `World.crash_at` ends
the process there. What was promised is checked on every step and with `World.check`.
"""

import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import xxhash
from tests.memory_objects import MemoryObjects

from icestream.cloud import ObjectDescriptor, ObjectMap, Trailer, UploadHead, check_trailer
from icestream.cloud.object import ObjectName, stream_prefix
from icestream.cloud.object_builder import ObjectBuilder
from icestream.cloud.uploader import Uploader
from icestream.metadata import MetadataStore, keys, open_metadata_store
from icestream.metadata.store import Condition, Entry, OutcomeUnknownError, TransactionResult
from icestream.metadata.store import Operation as Change
from icestream.model.enums import SyncMode
from icestream.model.errors import UnavailableError
from icestream.model.frames import Complete, SparseIndex, decode
from icestream.model.messages import Encoding, Frame
from icestream.model.names import TopicName
from icestream.storage.cloud.log_source import NOTES_FILE, LogNotes, LogSource
from icestream.storage.cloud.registry import MetadataRegistry
from icestream.testing import DiskOperation, SimulatedCrash, SimulatedDisk
from icestream.wal import FrameCache, Log, LogContext, LogOptions, StreamInfo, prepare
from icestream.wal.files import make_directories
from icestream.wal.producers import Producers

TOPIC = TopicName("default", "events")
STREAM_ID = UUID(int=7)
DIRECTORY = Path("/data/default/events")
SEGMENT_BYTES = 2_000


def failure(step: str) -> Exception:
    if step.startswith("notes"):
        return OSError(errno.EIO, "the disk failed")
    return OutcomeUnknownError("nobody answered") if "done" in step else UnavailableError("nobody answered")


class CountedMetadata:
    """The calls that a registry makes, counted."""

    def __init__(self, inner: MetadataStore, step: Callable[[str], None]) -> None:
        self._inner = inner
        self._step = step

    def get(self, key: str) -> Entry | None:
        self._step("metadata get")
        return self._inner.get(key)

    def list(self, *arguments: Any, **options: Any) -> Sequence[Entry]:
        self._step("metadata list")
        return self._inner.list(*arguments, **options)

    def transaction(self, conditions: Sequence[Condition], operations: Sequence[Change]) -> TransactionResult:
        self._step("metadata transaction")
        result = self._inner.transaction(conditions, operations)
        self._step("metadata transaction, done")
        return result


class World:
    """What outlives a process: the disk, the object store, the metadata store; and the process on top of them."""

    def __init__(self, *, seed: int = 0, sync_mode: SyncMode = SyncMode.ALWAYS, max_object_bytes: int = 5_000) -> None:
        self.rng = random.Random(seed)
        self.disk = SimulatedDisk()
        self.objects: dict[str, bytes] = {}
        self.metadata = open_metadata_store(in_memory=True)
        self.expected: list[bytes] = []
        """What the topic has to hold, by offset; frames are single messages."""
        self.steps = 0
        self.crash_at: int | None = None
        self.fail_at: int | None = None
        """The step that fails with an error, and the process goes on."""
        self.step_names: list[str] = []
        self.may_send_again = False
        """Where what lies in the store is none of ours."""
        self._options = LogOptions(
            sync_mode=sync_mode, max_file_bytes=SEGMENT_BYTES, preallocate_bytes=0, index_interval_bytes=300
        )
        self._max_object_bytes = max_object_bytes
        self._dead = False
        make_directories(self.disk, DIRECTORY.parent)
        self.start()

    def step(self, name: str) -> None:
        if self._dead:
            raise SimulatedCrash
        self.steps += 1
        self.step_names.append(name)
        if self.steps == self.crash_at:
            self._dead = True
            raise SimulatedCrash(name)
        if self.steps == self.fail_at:
            raise failure(name)

    def start(self, epoch: int = 1) -> None:
        self._dead, self.crash_at = False, None
        context = LogContext(self.disk, cache=FrameCache(1 << 20, 1_000), options=self._options)
        self.log = Log.create(context, DIRECTORY, StreamInfo(str(TOPIC), STREAM_ID, epoch, salt=99))
        del self.expected[self.log.durable_end :]  # a power cut may take what was never synced
        self.disk.on_operation = self._on_disk
        self.store = MemoryObjects(self.objects, before=self._before, after=self._after)
        metadata: Any = CountedMetadata(self.metadata, self.step)
        self.registry = MetadataRegistry(metadata, TOPIC, str(STREAM_ID))
        self.map = ObjectMap(self.registry)
        self.uploader = self.make_uploader()
        self.claim()

    def make_uploader(self, *, has_table: bool = True) -> Uploader:
        builder = ObjectBuilder(TOPIC, str(STREAM_ID), LogSource(self.log), self.store, read_bytes=700)
        return Uploader(
            builder,
            self.registry,
            LogNotes(self.log),
            self.map,
            has_table=has_table,
            max_object_bytes=self._max_object_bytes,
        )

    def claim(self) -> None:
        start = self.log.start_offset
        known = self.registry.head() or UploadHead(str(STREAM_ID), 1, first_offset=start, uploaded_end=start)
        assert known.uploaded_end <= self.log.durable_end, "what was uploaded is gone from the log"
        self.registry.claim(known)

    def crash(self) -> None:
        """The power fails, and the machine starts again."""
        self.disk.on_operation = None
        self.disk = self.disk.power_cut(self.rng)
        self.start()

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            text = b"%d %s" % (len(self.expected), b"x" * self.rng.randint(0, 400))
            payload = prepare(
                text, message_count=1, encoding=Encoding.ARROW_IPC, producer="p", sequence=len(self.expected)
            )
            self.log.append(payload)
            self.expected.append(text)

    def upload(self) -> list[ObjectDescriptor]:
        """Everything that is durable."""
        made = []
        while (descriptor := self.uploader.cycle()) is not None:
            made.append(descriptor)
        return made

    def _on_disk(self, operation: DiskOperation) -> None:
        if NOTES_FILE in str(operation.path):
            self.step(f"notes {operation.kind.value}")

    def _before(self, operation: str, key: str) -> None:
        self.step(f"store {operation}")
        if operation == "writer" and not self.may_send_again:
            self._check_not_sent_again(key)

    def _after(self, operation: str, _key: str) -> None:
        self.step(f"store {operation}, done")

    def _check_not_sent_again(self, key: str) -> None:
        """Neither what is described nor what lies there whole may be sent once more."""
        name = ObjectName.parse(key)
        assert name is not None
        assert name.first_offset >= self.head().uploaded_end, f"{key} was confirmed and is sent again"
        for other in self.objects:
            there = ObjectName.parse(other)
            if there is not None:
                apart = there.end_offset <= name.first_offset or there.first_offset >= name.end_offset
                assert apart, f"{key} is sent, and {other} has some of it"

    def head(self) -> UploadHead:
        entry = self.metadata.get(keys.cloud_head(TOPIC))
        assert entry is not None
        return UploadHead.from_bytes(entry.value)

    def described(self) -> list[ObjectDescriptor]:
        return MetadataRegistry(self.metadata, TOPIC, str(STREAM_ID)).objects()

    def check(self, *, complete: bool = True) -> None:
        """No hole, no overlap, and every byte as the log has it."""
        self.crash_at = self.fail_at = None
        head, described = self.head(), self.described()
        offset = head.first_offset
        for descriptor in described:
            assert descriptor.first_offset == offset, f"a hole or an overlap at {offset}"
            offset = descriptor.end_offset
            check_object(descriptor, self.objects[descriptor.key], self.expected)
        assert offset == head.uploaded_end
        assert head.object_count == len(described)
        assert head.object_bytes == sum(descriptor.size for descriptor in described)
        assert [span.first_offset for span in self.map.spans] == [one.first_offset for one in described]
        if complete:
            assert head.uploaded_end == len(self.expected)
            named = {descriptor.key for descriptor in described}
            there = {key for key in self.objects if key.startswith(stream_prefix(TOPIC, str(STREAM_ID)))}
            assert there == named, "an object that nothing describes was left"


def check_object(descriptor: ObjectDescriptor, data: bytes, expected: Sequence[bytes]) -> None:
    """An object by itself: its frames, their order and bodies, its checksum, index, producers and footer."""
    frames, trailer = check_bytes(descriptor, data)
    for frame in frames:
        assert bytes(frame.body) == expected[frame.base_offset]
    producers = Producers(10)
    assert producers.take_bytes(trailer.producers)
    assert producers.next_sequence("p") == descriptor.end_offset


def check_bytes(descriptor: ObjectDescriptor, data: bytes) -> tuple[list[Frame], Trailer]:
    """An object's frames and its trailer, whatever the messages are."""
    assert len(data) == descriptor.size
    view = memoryview(data)[: descriptor.data_bytes]
    assert xxhash.xxh3_64_intdigest(view) == descriptor.checksum
    frames: list[Frame] = []
    position, offset = 0, descriptor.first_offset
    positions: dict[int, int] = {}
    while position < descriptor.data_bytes:
        outcome = decode(view, position, descriptor.part_at(position).seed + position)
        assert isinstance(outcome, Complete), outcome
        assert outcome.frame.base_offset == offset
        positions[offset] = position
        position, offset = outcome.end, outcome.frame.end_offset
        frames.append(outcome.frame)
    assert (offset, len(frames)) == (descriptor.end_offset, descriptor.frame_count)
    trailer = check_trailer(data[descriptor.data_bytes :], descriptor)
    check_index(trailer.index, positions)
    return frames, trailer


def check_index(index: SparseIndex, positions: dict[int, int]) -> None:
    for offset, position in positions.items():
        found = index.position_of_offset(offset)
        assert found is not None
        assert found <= position
        assert found in positions.values()
