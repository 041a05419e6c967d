"""A place where pipelines run: a broker, a catalog, the topics of one namespace, publishers, and the oracle."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fault.pipeline import processes
from tests.fault.pipeline.crash_at import INLINE, crashing, crashing_environ
from tests.fault.pipeline.oracle import PATIENCE_SECONDS, Oracle

from icestream.client import Client, Producer
from icestream.config import Settings
from icestream.model.errors import CatalogUnavailableError
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.pipeline.child_process import encode_settings
from icestream.pipeline.driver import Runner
from icestream.pipeline.one_pass import JobRunner
from icestream.pipeline.report import PassFigures
from icestream.pipeline.supervisor import LOG_NAME, Supervisor, pipeline_supervisor
from icestream.pipeline.tasks import Written, write_parcels
from icestream.storage.verify import BrokerLogs, verify_topic
from icestream.table import Tables, TopicTable

STOP_SECONDS = 60.0
_POLL_SECONDS = 0.02
Sections = dict[str, dict[str, Any]]


class InlineJobs:
    """Runs the real tasks where it is called, and lets somebody act before and after each job."""

    parallelism = 2

    def __init__(
        self, *, before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None
    ) -> None:
        self.before = before
        self.after = after
        self.jobs = 0

    def run(self, parcels: Sequence[bytes], /) -> list[Written]:
        self.jobs += 1
        self.before()
        written = list(write_parcels(parcels))
        self.after()
        return written


def once(action: Callable[[], object]) -> Callable[[], object]:
    """An action that is taken the first time only."""
    left = [action]
    return lambda: left.pop()() if left else None


def wait_for(what: str, found: Callable[[], object]) -> None:
    """Ask again and again until it is there."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not found():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(_POLL_SECONDS)


class Site:
    """`sections` are the settings of catalog, object store and all else that is not the default."""

    def __init__(self, broker: str, data_dir: Path, namespace: str, sections: Sections | None = None) -> None:
        self.namespace = namespace
        self.data_dir = data_dir
        self.client = Client(broker)
        self.oracle = Oracle()
        self._sections = sections or {}
        self.suspects: set[int] = set()
        """Processes whose stacks are of interest if a test fails."""
        self._closing = contextlib.ExitStack()
        self._closing.callback(self.client.close)
        self.tables = self.own_tables()
        self._producers: dict[tuple[TopicName, str], Producer] = {}

    def close(self) -> None:
        self._closing.close()

    # Settings, runners, processes

    def settings(self, **sections: dict[str, Any]) -> Settings:
        chosen: dict[str, Any] = {
            "pipeline": {"topics": f"{self.namespace}/*", "retry_interval_ms": 20, "max_retry_interval_ms": 500},
            "writer": {"flush_interval_ms": 1},
        }
        for extra in (self._sections, sections):
            for name, values in extra.items():
                chosen[name] = chosen.get(name, {}) | values
        return Settings(data_dir=self.data_dir, **chosen)

    def own_tables(self, **sections: dict[str, Any]) -> Tables:
        """As another process would have them."""
        return self._closing.enter_context(contextlib.closing(Tables(self.settings(**sections))))

    def runner(
        self, jobs: JobRunner | None = None, *, tables: Tables | None = None, **sections: dict[str, Any]
    ) -> Runner:
        runner = Runner(
            self.settings(**sections), self.client, tables or self.own_tables(**sections), jobs or InlineJobs()
        )
        self._closing.callback(runner.close)
        return runner

    @contextlib.contextmanager
    def process(
        self, name: str = "pipeline", crash_at: str | None = None, **sections: dict[str, Any]
    ) -> Iterator[Supervisor]:
        """A supervised `icestream pipeline`, which is started again whenever it dies; `crash_at` names points."""
        sections["pipeline"] = {"master": "local[2]", "restart_interval_ms": 1} | sections.get("pipeline", {})
        settings = self.settings(**sections)
        folder = self.data_dir / self.namespace / name
        supervisor = pipeline_supervisor(settings.model_copy(update={"data_dir": folder}), self.client.endpoint)
        if crash_at:
            supervisor = Supervisor(
                [*crashing(crash_at), "pipeline", "--child", "--broker", self.client.url],
                encode_settings(settings),
                folder / LOG_NAME,
                log_max_bytes=settings.pipeline.log_max_bytes,
                restart_seconds=settings.pipeline.restart_interval_ms / 1000,
                environ=crashing_environ(),
            )
        supervisor.start()
        try:
            yield supervisor
        except BaseException as error:
            processes.have_stacks_written({supervisor.state.pid or 0, *self.suspects})
            with contextlib.suppress(OSError):
                error.add_note((folder / "pipeline.log").read_text()[-12_000:])
            raise
        finally:
            supervisor.stop(STOP_SECONDS)

    @contextlib.contextmanager
    def crashing_process(self, points: Sequence[str], folder: Path, *topics: str) -> Iterator[Supervisor]:
        """A supervised pipeline in which a process was killed at each point, once, while topics were published to."""
        files = {point: folder / point for point in points if point != INLINE}
        crash_at = [*(f"{point}@{file}" for point, file in files.items()), *([INLINE] if INLINE in points else [])]
        for name in topics:
            self.publish(name)
        with self.process(crash_at=",".join(crash_at), writer={"flush_interval_ms": 50}) as pipeline:
            with self.publishing(*topics):
                for point, file in files.items():
                    wait_for(f"the kill at {point}", file.exists)
            yield pipeline

    # Publishing

    def topic(self, name: str) -> TopicName:
        return TopicName(self.namespace, name)

    def publish(self, name: str, count: int = 10, *, producer: str = "main", filler_bytes: int = 60) -> None:
        """Messages that are acknowledged when this returns."""
        topic = self.topic(name)
        key = topic, producer
        if key not in self._producers:
            self._producers[key] = self._closing.enter_context(
                self.client.producer(topic, name=producer, retry_timeout=PATIENCE_SECONDS)
            )
        payloads = self.oracle.payloads(count, filler_bytes=filler_bytes)
        first = self._producers[key].send_batch(message_batch(payloads)).result(PATIENCE_SECONDS)
        self.oracle.acknowledged(topic, first, payloads)

    @contextlib.contextmanager
    def publishing(self, *names: str, seed: int = 0, pause_seconds: float = 0.01) -> Iterator[None]:
        """A thread for each topic that publishes all the while; all of it is acknowledged at the end."""
        stopping = threading.Event()

        def publish(name: str) -> None:
            rng = random.Random(f"{seed} {name}")
            try:
                while not stopping.wait(pause_seconds):
                    self.publish(name, rng.randint(1, 30), producer=f"load-{name}")
            except BaseException as error:
                self.oracle.failed(error)
                raise

        threads = [threading.Thread(target=publish, args=(name,), name=f"load-{name}") for name in names]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopping.set()
            for thread in threads:
                thread.join()
        self.oracle.wait_for_acks(0)  # raises what a thread has met

    def delete_topic(self, name: str, *, keep_table: bool = False) -> None:
        topic = self.topic(name)
        for key in [key for key in self._producers if key[0] == topic]:
            self._producers.pop(key).close()
        self.client.delete_topic(topic, keep_table=keep_table)
        self.oracle.deleted(topic)

    # The end

    def drain(self, runner: Runner) -> PassFigures:
        """Everything is written, with no error left."""
        figures = runner.drain(threading.Event())
        errors = [topic.error for topic in figures.topics.values() if topic.error]
        assert not errors, errors
        return figures

    def drain_all_but(self, runner: Runner, bad: TopicName) -> None:
        """Everything is written, with no error left but one topic's."""
        figures = runner.drain(threading.Event())
        assert [topic.topic for topic in figures.topics.values() if topic.error] in ([], [bad])

    @contextlib.contextmanager
    def running(self, *runners: Runner) -> Iterator[None]:
        """Runners on threads of their own, as processes would run them."""
        stopping = threading.Event()
        threads = [threading.Thread(target=runner.run, args=(stopping,), name="runner") for runner in runners]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopping.set()
            for thread in threads:
                thread.join()

    def committed(self, name: str) -> int:
        """What the ledger says; 0 while there is no table, or the catalog is away."""
        try:
            found = self.tables.find(self.topic(name))
        except CatalogUnavailableError:
            return 0
        return found.ledger.committed_offset if found is not None else 0

    def wait_until_in_tables(self, *names: str) -> None:
        """Everything that is acknowledged now is, by the ledgers; a pipeline runs beside."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for name, end in [(name, self.oracle.end(self.topic(name))) for name in names]:
            while (committed := self.committed(name)) < end:
                assert time.monotonic() < deadline, f"{name}: {committed} of {end} are in the table"
                time.sleep(_POLL_SECONDS)

    def table_at(self, name: str, committed: int) -> TopicTable:
        """The table, which holds so many messages."""
        found = self.tables.find(self.topic(name))
        assert found is not None
        assert found.ledger.committed_offset == committed
        return found

    def check(self, *names: str) -> None:
        """The oracle and `icestream verify` find nothing wrong."""
        for name in names:
            stream_id = self.client.describe_topic(self.topic(name)).stream_id
            self.oracle.check(self.tables, self.topic(name), stream_id)
            verified = verify_topic(self.topic(name), BrokerLogs(self.client).view, self.tables)
            assert verified.is_sound, verified.findings
