"""`kill -9` of every process that takes part, at named points and at any moment under load.

The named points are each met once, in whatever order the processes come to them. Those of the driver are met without
Spark, those of tasks with it: Spark runs a killed task again.
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fault.pipeline import processes
from tests.fault.pipeline.conftest import MakeSite, environ
from tests.fault.pipeline.crash_at import DRIVER_POINTS, INLINE, TASK_POINTS
from tests.fault.pipeline.harness import Site, wait_for

from icestream.broker_process import BrokerProcess
from icestream.pipeline.supervisor import Supervisor

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))
KILLS: tuple[str, ...] = ("worker",) * 2 + ("broker", "driver", "worker parent", "jvm")
if SOAK:
    KILLS += ("worker",) * 4 + ("broker",) * 4 + ("driver",)
SETS_OF_KILLS = 10 if SOAK else 1
TOPICS = ("first", "second", "third")


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    sections = {"reader": {"poll_interval_ms": 200}, "wal": {"max_file_size": 1 << 20}}
    with BrokerProcess(tmp_path / "data", environ=environ(sections)) as process:
        yield process


class Killer:
    """Knows what runs, and ends one of it."""

    def __init__(self, broker: BrokerProcess, pipeline: Supervisor, rng: random.Random, seen: set[int]) -> None:
        self._broker = broker
        self._pipeline = pipeline
        self._rng = rng
        self.seen = seen
        """Takes in all processes that are below a driver when something is killed."""

    @property
    def driver(self) -> int:
        wait_for("a driver", lambda: self._pipeline.state.pid)
        return self._pipeline.state.pid or 0

    def kill(self, kind: str) -> None:
        self.seen |= {self.driver, *processes.descendants(self.driver)}
        match kind:
            case "broker":
                self._broker.kill()
                self._broker.start()
            case "driver":
                processes.kill(self.driver)
            case "jvm":
                processes.kill(self._one_of(processes.jvms))
            case "worker parent":
                processes.kill(self._one_of(processes.worker_parents))
            case "worker":
                processes.kill(self._one_of(self._workers))

    def _workers(self, driver: int) -> list[int]:
        """Spark goes on with workers whose parent was killed, as long as they live."""
        orphans = [pid for pid in self.seen if processes.WORKER in processes.command(pid)]
        return processes.workers(driver) or orphans

    def _one_of(self, find: Callable[[int], list[int]]) -> int:
        found: list[int] = []
        wait_for("a process to kill", lambda: found.extend(find(self.driver)) or found)  # type: ignore[func-returns-value]
        return self._rng.choice(found)


@pytest.mark.parametrize("points", [(INLINE, *DRIVER_POINTS), TASK_POINTS], ids=["driver", "tasks"])
def test_kills_at_every_named_point_leave_each_message_in_the_table_once(
    site: Site, tmp_path: Path, points: tuple[str, ...]
) -> None:
    with site.crashing_process(points, tmp_path, *TOPICS) as pipeline:
        site.wait_until_in_tables(*TOPICS)
        assert pipeline.state.starts == len([point for point in points if point in DRIVER_POINTS]) + 1
    site.check(*TOPICS)


@pytest.mark.parametrize("seed", range(1, 1 + SETS_OF_KILLS))
def test_kills_at_any_moment_leave_each_message_in_the_table_once(
    make_site: MakeSite, own_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    rng = random.Random(seed)
    kills = list(KILLS)
    rng.shuffle(kills)
    site = make_site(own_broker)
    site.publish("first")
    done: list[str] = []
    try:
        with site.process(writer={"flush_interval_ms": 20}) as pipeline:
            killer = Killer(own_broker, pipeline, rng, site.suspects)
            site.wait_until_in_tables("first")
            with site.publishing(*TOPICS, seed=seed):
                for kind in kills:
                    if rng.random() < 0.7:
                        before = site.committed("first")
                        wait_for("a commit", lambda before=before: site.committed("first") > before)  # type: ignore[misc]
                    site.oracle.wait_for_acks(rng.choice((1, rng.randint(1, 200), rng.randint(1, 600))))
                    killer.kill(kind)
                    done.append(kind)
            site.wait_until_in_tables(*TOPICS)
            assert pipeline.state.starts > kills.count("driver")
    except BaseException as error:
        error.add_note(f"seed {seed}, after {done}")
        raise
    for pid in killer.seen:
        processes.wait_for_end(pid)
    site.check(*TOPICS)
