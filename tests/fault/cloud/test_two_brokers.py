"""Two brokers that both think they own a topic: only the newer one can describe objects."""

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from tests.fault.cloud.uploads import check_object
from tests.memory_objects import MemoryObjects

from icestream.cloud import ObjectDescriptor, ObjectMap, UploadHead
from icestream.cloud.object_builder import ObjectBuilder
from icestream.cloud.uploader import Uploader
from icestream.metadata import MetadataStore, open_metadata_store
from icestream.model.errors import ConflictError, StaleEpochError
from icestream.model.messages import Encoding
from icestream.model.names import TopicName
from icestream.storage.cloud.log_source import LogNotes, LogSource
from icestream.storage.cloud.registry import MetadataRegistry
from icestream.wal import LocalFiles, Log, LogContext, LogOptions, StreamInfo, prepare
from icestream.wal.records import load_stream
from icestream_servers import EtcdServer

TOPIC = TopicName("default", "races")
BACKLOG = 60
RACES = 6
PATIENCE_SECONDS = 60.0
OpenStore = Callable[[], MetadataStore]


@pytest.fixture(params=["sqlite", "etcd"])
def open_metadata(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Connections to one store."""
    opened: list[MetadataStore] = []

    def connect() -> MetadataStore:
        if request.param == "sqlite":
            store = open_metadata_store(sqlite_path=tmp_path / "metadata.db")
        else:
            server: EtcdServer = request.getfixturevalue("etcd_server")
            store = open_metadata_store(etcd=server.options(prefix=f"/{tmp_path.name}"))
        opened.append(store)
        return store

    yield connect
    for store in opened:
        store.close()


class Broker:
    """One owner: its log, its connection to the metadata store, its view of the object store."""

    def __init__(self, directory: Path, stream: StreamInfo, metadata: MetadataStore, objects: dict[str, bytes]) -> None:
        options = LogOptions(max_file_bytes=4_000, index_interval_bytes=300)
        self.log = Log.create(LogContext(LocalFiles(), options=options), directory, stream)
        self.stream_id = str(stream.stream_id)
        self.registry = MetadataRegistry(metadata, TOPIC, self.stream_id)
        self.store = MemoryObjects(objects)
        builder = ObjectBuilder(TOPIC, self.stream_id, LogSource(self.log), self.store)
        self.uploader = Uploader(
            builder, self.registry, LogNotes(self.log), ObjectMap(self.registry), max_object_bytes=600
        )

    def publish(self, texts: list[bytes]) -> None:
        for text in texts:
            sequence = self.log.next_sequence("p")
            self.log.append(
                prepare(text, message_count=1, encoding=Encoding.ARROW_IPC, producer="p", sequence=sequence)
            )

    def claim(self) -> int:
        """Take the topic over; how far it was uploaded then."""
        while True:
            head = self.registry.head() or UploadHead(self.stream_id, 0)
            try:
                self.registry.claim(replace(head, epoch=self.log.stream.epoch))
            except ConflictError:
                continue  # the other one was quicker, once more
            return head.uploaded_end

    def upload(self) -> list[ObjectDescriptor]:
        """Until all is shipped or the topic is another's."""
        made = []
        try:
            while (descriptor := self.uploader.cycle()) is not None:
                made.append(descriptor)
        except StaleEpochError:
            self.stale = True
        return made

    stale = False


@pytest.mark.parametrize("seed", range(RACES))
def test_of_two_owners_that_upload_at_once_only_the_newer_one_describes_objects(
    tmp_path: Path, open_metadata: OpenStore, seed: int
) -> None:
    rng = random.Random(seed)
    objects: dict[str, bytes] = {}
    stream = StreamInfo(str(TOPIC), uuid4(), epoch=3)
    old = Broker(tmp_path / "old", stream, open_metadata(), objects)
    common = [b"common %d %s" % (number, b"x" * rng.randint(0, 200)) for number in range(BACKLOG)]
    old.publish(common)
    assert old.claim() == 0
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    files = LocalFiles()
    replace(load_stream(files, tmp_path / "new"), epoch=4).save(files, tmp_path / "new")
    new = Broker(tmp_path / "new", stream, open_metadata(), objects)
    of_new = [b"of the new one %d" % number for number in range(20)]
    taken_at: list[int] = []
    ready, taken = threading.Barrier(2), threading.Event()

    def take_over() -> None:
        ready.wait()
        for _ in range(rng.randint(0, 12)):  # a while, counted in requests
            new.registry.head()
        taken_at.append(new.claim())
        taken.set()
        new.publish(of_new)
        new.upload()

    def go_on() -> None:
        """It does not know, and goes on to publish and to upload."""
        ready.wait()
        old.upload()
        assert taken.wait(PATIENCE_SECONDS)
        old.publish([b"of the old one %d" % number for number in range(20)])
        old.upload()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(take_over), pool.submit(go_on)]:
            done.result()
    assert old.upload() == []
    assert old.stale
    assert not new.stale
    check(new, objects, common + of_new, taken_at[0])


def test_of_two_new_owners_of_one_epoch_only_the_first_is_admitted(open_metadata: OpenStore) -> None:
    stream_id = str(uuid4())
    first, second = (MetadataRegistry(open_metadata(), TOPIC, stream_id) for _ in range(2))
    head = first.claim(UploadHead(stream_id, 2), record_revision=0)
    with pytest.raises(ConflictError):
        second.claim(head, record_revision=0)
    first.update(replace(head, updated_us=1))
    taken = second.claim(replace(head, updated_us=1, epoch=3), record_revision=0)
    assert taken.epoch == 3
    with pytest.raises(StaleEpochError):
        first.update(head)
    assert second.claim(taken).epoch == 3  # the holder's restart keeps its epoch


def check(new: Broker, objects: dict[str, bytes], expected: list[bytes], taken_at: int) -> None:
    head = new.registry.head()
    assert head is not None
    described = new.registry.objects()
    offset = 0
    for one in described:
        assert one.first_offset == offset, "a hole or an overlap"
        offset = one.end_offset
        check_object(one, objects[one.key], expected)
    assert offset == head.uploaded_end == len(expected)
    assert head.epoch == 4
    assert all(one.end_offset <= taken_at for one in described if one.epoch == 3 and one.first_offset < taken_at)
