"""Threads that publish to one log at once, on a disk that fails now and then."""

import contextlib
import threading
from dataclasses import dataclass, field

import pytest
from tests.log_model import Batch, open_log, read_all

from icestream.model.errors import LogUnavailableError
from icestream.testing import FaultPlan, FaultyFiles, SimulatedDisk
from icestream.wal import Log, LogOptions, LogReader

OPTIONS = LogOptions(
    max_file_bytes=8000, max_group_bytes=3000, preallocate_bytes=1024, index_interval_bytes=512, reopen_pause_seconds=0
)
PRODUCERS = 6
BATCHES = 30
STUCK_SECONDS = 60  # reached only if threads wait for each other


@dataclass
class Producer(threading.Thread):
    """Sends its batches one after the other, each until it is acknowledged."""

    log: Log
    producer: str
    acknowledged: dict[int, Batch] = field(default_factory=dict)
    refusals: int = 0

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        for sequence in range(BATCHES):
            batch = Batch(self.producer, sequence, 1, f"{self.producer}:{sequence}".encode() * 20)
            while True:
                try:
                    append = self.log.append(batch.payload())
                except LogUnavailableError:
                    self.refusals += 1
                    continue
                self.acknowledged[append.base_offset] = batch
                break


def run_together(threads: list[Producer]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(STUCK_SECONDS)
        assert not thread.is_alive(), f"{thread.producer} got no answer"


@pytest.mark.parametrize("seed", range(8))
def test_each_batch_of_each_thread_is_stored_once_and_in_order(seed: int) -> None:
    disk = SimulatedDisk()
    log = open_log(disk, OPTIONS)
    log.close()
    plan = FaultPlan.random(seed, chance=0.01 if seed else 0.0)
    log = open_log_until_it_works(FaultyFiles(disk, plan))
    threads = [Producer(log, f"p{number}") for number in range(PRODUCERS)]
    run_together(threads)
    plan.clear()
    assert bool(sum(thread.refusals for thread in threads)) == bool(plan.injected)

    acknowledged = {offset: batch for thread in threads for offset, batch in thread.acknowledged.items()}
    assert sorted(acknowledged) == list(range(PRODUCERS * BATCHES))
    for reopened in (log, open_log(disk.snapshot(), OPTIONS)):
        stored = {
            frame.base_offset: Batch(frame.producer, frame.sequence, frame.message_count, bytes(frame.body))
            for frame in read_all(reopened)
        }
        assert stored == acknowledged
    for thread in threads:
        assert [batch.sequence for _, batch in sorted(thread.acknowledged.items())] == list(range(BATCHES))


def open_log_until_it_works(files: FaultyFiles) -> Log:
    while True:
        try:
            return open_log(files, OPTIONS)
        except OSError:
            continue


def test_a_reader_that_follows_sees_every_offset_once_while_many_threads_publish() -> None:
    log = open_log(SimulatedDisk(), OPTIONS)
    seen: list[int] = []

    def follow() -> None:
        reader = LogReader(log, 0)
        while len(seen) < PRODUCERS * BATCHES:
            reader.wait()
            seen.extend(frame.base_offset for frame in reader.read())

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    run_together([Producer(log, f"p{number}") for number in range(PRODUCERS)])
    follower.join(STUCK_SECONDS)
    assert seen == list(range(PRODUCERS * BATCHES))


def test_an_exception_in_a_listener_does_not_leave_producers_waiting() -> None:
    log = open_log(SimulatedDisk(), OPTIONS)

    def fail() -> None:
        raise RuntimeError("a listener's own fault")

    first = Batch("a", 0, 1, b"first")
    log.listeners.add(fail)
    with contextlib.suppress(RuntimeError, LogUnavailableError):
        log.append(first.payload())
    log.listeners.clear()
    run_together([Producer(log, "b")])
