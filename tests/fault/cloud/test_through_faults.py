"""A topic that lives on an S3 server which fails all the time: uploads, pruning and reading, to the last message."""

import os
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from tests.http_proxy import Answer, CutReply, CutRequest, Delay, DropReply, Fault, FaultProxy
from tests.reading import TOPIC, pairs

from icestream.config import Settings
from icestream.model.errors import IcestreamError
from icestream.model.messages import message_batch
from icestream.model.offsets import StartPosition
from icestream.storage import IcebergStorage, Topic
from icestream_servers import S3Server

SEED = int(os.environ.get("ICESTREAM_SEED", "1"))
FAULTS_MET = 3_000 if os.environ.get("ICESTREAM_SOAK") else 100
PATIENCE_SECONDS = 120.0
FAULTS: list[Fault] = [
    Answer(503),
    Answer(503, after_server=True),
    Answer(500),
    Answer(429),
    DropReply(),
    Delay(0.02),
    CutReply(after_bytes=0),
    CutReply(after_bytes=20_000),
    CutRequest(after_bytes=0),
    CutRequest(after_bytes=20_000),
]


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.url) as proxy:
        yield proxy


@pytest.fixture
def settings(tmp_path: Path, s3_server: S3Server, proxy: FaultProxy) -> Settings:
    cloud: dict[str, Any] = s3_server.cloud_settings(endpoint=proxy.url)["cloud"]
    cloud |= {"root": f"{cloud['root']}/{uuid4().hex}", "max_retries": 2, "timeout_ms": 2_000, "part_mb": 5}
    tree = {
        "data_dir": tmp_path,
        "cloud": cloud,
        "uploader": {"enabled": True, "interval_seconds": 3_600},
        "wal": {"max_file_size": 65_536},
        "reader": {"cloud_prefetch_bytes": 1 << 20},
    }
    return Settings.model_validate(tree)


def payload(offset: int) -> bytes:
    return b"%08d" % offset + b"x" * 992


class Run:
    """Publishes, uploads, prunes and reads by chance; a failed call is repeated, whatever happened to it."""

    def __init__(self, topic: Topic, storage: IcebergStorage, proxy: FaultProxy) -> None:
        self._rng = random.Random(SEED)
        self._topic = topic
        self._storage = storage
        self._proxy = proxy
        self.failed = 0

    @property
    def faults(self) -> int:
        return sum(exchange.fault is not None for exchange in self._proxy.exchanges())

    def step(self) -> None:
        for _ in range(self._rng.choice((1, 2, 3))):
            method = self._rng.choice((None, None, "GET", "PUT", "HEAD"))
            self._proxy.inject(self._rng.choice(FAULTS), method=method, times=self._rng.choice((1, 2, 4)))
        action = self._rng.choice((self._publish, self._upload, self._upload, self._read, self._read))
        try:
            action()
        except IcestreamError as error:
            if not error.retryable:
                raise
            self.failed += 1

    def _publish(self) -> None:
        first, count = self._topic.log.durable_end, self._rng.randint(1, 60)
        self._storage.publish(self._topic, message_batch([payload(first + number) for number in range(count)]))

    def _upload(self) -> None:
        assert self._topic.cloud is not None
        self._topic.cloud.flush(PATIENCE_SECONDS)
        self._topic.log.cache.clear()
        self._topic.log.prune(self._topic.cloud.uploaded_end)

    def _read(self) -> None:
        end = self._topic.log.durable_end
        if end:
            self.check(self._rng.randrange(end), self._rng.randint(1, 200))

    def check(self, start: int, count: int | None = None) -> None:
        """Everything that comes is right, also before an error."""
        expected = start
        for batch in self._topic.read(self._topic.reader(StartPosition.offset(start)), max_messages=count):
            found = pairs(batch)
            assert found == [(offset, payload(offset)) for offset in range(expected, expected + len(found))]
            expected += len(found)
        wanted = self._topic.log.durable_end if count is None else min(start + count, self._topic.log.durable_end)
        assert expected == wanted

    def calm(self) -> None:
        """The server is well again: what is left is uploaded, and an object that was in trouble is read again."""
        self._proxy.clear()
        deadline = monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._upload()
                self.check(0)
            except IcestreamError as error:
                if not error.retryable or monotonic() > deadline:
                    raise
            else:
                return


def test_no_message_is_lost_doubled_or_garbled(settings: Settings, proxy: FaultProxy) -> None:
    with IcebergStorage(settings) as storage:
        topic = storage.topics.create(TOPIC, storage="log")
        run = Run(topic, storage, proxy)
        while run.faults < FAULTS_MET:
            run.step()
        run.calm()
        assert topic.cloud is not None
        spans = topic.cloud.objects.spans
        assert spans[0].first_offset == 0
        assert all(one.end_offset == following.first_offset for one, following in pairwise(spans))
        assert run.failed > 0
    with IcebergStorage(settings) as storage:
        Run(storage.topic(TOPIC), storage, proxy).check(0)
