"""A broker in this process, so that frames can be put into its logs that no door would take, and pipelines for it."""

import pickle
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.integration.pipeline.conftest import InlineJobs, Pipelines

from icestream.app import Broker
from icestream.config import Settings
from icestream.model.messages import Encoding
from icestream.model.names import TopicName
from icestream.pipeline.quarantine.worker_probe import ProbeFetch
from icestream.pipeline.report import TopicPassFigures
from icestream.pipeline.spark.session import JobFailedError
from icestream.pipeline.tasks import Work, Written
from icestream.table import TopicTable
from icestream.wal import prepare

QUICK = {"retry_interval_ms": 1, "max_retry_interval_ms": 20, "quarantine_after": 2}


def settings_of(data_dir: Path, **sections: dict[str, str]) -> Settings:
    ports = {f"{door}_port": 0 for door in ("flight", "http")} | {
        f"{door}_port": -1 for door in ("otlp_grpc", "otlp_http")
    }
    given = {"data_dir": data_dir, "server": ports, "reader": {"poll_interval_ms": 20}, **sections}
    return Settings.model_validate(given)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Broker]:
    with Broker(settings_of(tmp_path / "data")) as broker:
        yield broker


@pytest.fixture
def site(running: Broker) -> Iterator[Pipelines]:
    made = Pipelines(running.settings.data_dir, running.doors["flight"], "aside")
    yield made
    made.close()


def poison(broker: Broker, topic: TopicName, body: bytes = b"no Arrow at all", count: int = 3) -> int:
    """Append a frame with a right checksum and a body that cannot be opened: no door takes one. Its first offset."""
    payload = prepare(body, message_count=count, encoding=Encoding.ARROW_IPC)
    return broker.storage.topic(topic, create=True).log.append(payload).base_offset


def drain(site: Pipelines, jobs: InlineJobs | None = None, **pipeline: int) -> dict[TopicName, TopicPassFigures]:
    runner = site.runner(jobs or InlineJobs(), pipeline={**QUICK, **pipeline})
    return runner.drain(threading.Event()).topics


class CrashingAt(InlineJobs):
    """A job fails, as Spark's does when a worker dies, whenever it is to write the message at an offset."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self._offset = offset
        self.is_sick = False

    def run(self, parcels: Sequence[bytes], /) -> list[Written]:
        works: list[Work] = [work for parcel in parcels for work in pickle.loads(parcel)]
        ranges = [one for work in works if not isinstance(work.fetch, ProbeFetch) for one in work.ranges]
        if self.is_sick or any(start <= self._offset < end for start, end in ranges):
            self.jobs += 1
            raise JobFailedError("a worker died")
        return super().run(parcels)


def table_of(site: Pipelines, name: str) -> TopicTable:
    found = site.tables.find(site.topic(name))
    assert found is not None
    return found


def offsets(site: Pipelines, name: str) -> list[int]:
    found: list[int] = site.rows(name).column(0).to_pylist()
    return found
