"""A disk that runs full under a storage: producers are held up in time, nothing is lost, and all goes on by itself."""

import errno
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.reading import Stage, rest_of

from icestream.model.errors import DiskFullError, LogUnavailableError
from icestream.model.messages import message_batch
from icestream.model.units import MIB
from icestream.storage import disk
from icestream.wal import LogState

DISK_BYTES = 12 * MIB
KEPT_FREE_MB = 4
PATIENCE_SECONDS = 60.0
WAL = {
    "max_file_size": 64 * 1024,
    "preallocate_bytes": 64 * 1024,
    "min_free_mb": KEPT_FREE_MB,
    "retention": {"time_minutes": None},
}


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of its own; where none can be mounted, a directory that is measured as if it were one."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        yield path
        subprocess.run(["umount", str(path)], check=True)
        return

    def free_bytes(_: Path) -> int:
        return max(0, DISK_BYTES - used_bytes(path))

    monkeypatch.setattr(disk, "free_bytes", free_bytes)
    yield path


def used_bytes(path: Path) -> int:
    used = 0
    for file in path.rglob("*"):
        try:
            used += file.stat().st_blocks * 512
        except FileNotFoundError:  # retention was faster
            continue
    return used


@pytest.fixture
def stage(tmp_path: Path, small_disk: Path) -> Iterator[Stage]:
    """Only the log is on the small disk."""
    stage = Stage(tmp_path / "data", wal=WAL | {"dir": small_disk / "wal"})
    yield stage
    stage.close()


class Sender:
    """Publishes numbered messages, and knows which were acknowledged."""

    def __init__(self, stage: Stage, name: str = "one", size: int = 20_000) -> None:
        self._stage = stage
        self._name = name
        self._size = size
        self.acknowledged: list[bytes] = []

    def send(self) -> None:
        payload = f"{self._name}-{len(self.acknowledged)}-".encode().ljust(self._size, b"x")
        batch = message_batch([payload])
        sequence = len(self.acknowledged)
        self._stage.storage.publish(self._stage.topic, batch, producer=self._name, sequence=sequence)
        self.acknowledged.append(payload)

    def send_until_refused(self) -> DiskFullError:
        for _ in range(DISK_BYTES // self._size * 2):
            try:
                self.send()
            except DiskFullError as error:
                return error
        raise AssertionError("nothing was ever refused")

    def send_until_accepted(self) -> None:
        def accepted() -> bool:
            try:
                self.send()
            except DiskFullError:
                return False
            return True

        wait_until(accepted)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.01)


def payloads(stage: Stage) -> list[bytes]:
    with_reader = stage.reader(0)
    found = rest_of(with_reader)
    with_reader.close()
    assert [offset for offset, _ in found] == list(range(len(found)))
    return [payload for _, payload in found]


def test_producers_are_held_up_before_the_disk_is_full_and_readers_are_not(stage: Stage, small_disk: Path) -> None:
    sender = Sender(stage)
    error = sender.send_until_refused()
    assert error.retryable
    assert str(small_disk) in error.place
    assert disk.free_bytes(small_disk) > (KEPT_FREE_MB - 1) * MIB
    assert stage.topic.log.state is LogState.OPEN
    for _ in range(3):
        with pytest.raises(DiskFullError):
            sender.send()
    assert payloads(stage) == sender.acknowledged
    assert stage.topic.log.start_offset == 0  # nothing else has them: nothing goes


def test_what_the_table_has_makes_room_by_itself_and_publishing_goes_on(stage: Stage) -> None:
    sender = Sender(stage)
    for _ in range(3):
        sender.send_until_refused()
        stage.commit()
        sender.send_until_accepted()
    assert stage.topic.log.start_offset > 0
    assert len(sender.acknowledged) * 20_000 > DISK_BYTES
    assert payloads(stage) == sender.acknowledged
    stage.restart()
    assert payloads(stage) == sender.acknowledged


def test_room_that_somebody_else_makes_is_noticed(stage: Stage, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\1" * 9 * MIB)
    sender = Sender(stage, size=1_000)
    wait_until(lambda: stage.storage.disk.is_full)
    with pytest.raises(DiskFullError):
        sender.send()
    ballast.unlink()
    sender.send_until_accepted()
    assert payloads(stage) == sender.acknowledged


def test_many_fast_producers_do_not_overrun_what_is_kept_free(stage: Stage, small_disk: Path) -> None:
    senders = [Sender(stage, f"p{number}", size=100_000) for number in range(4)]
    threads = [threading.Thread(target=sender.send_until_refused) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert stage.topic.log.state is LogState.OPEN
    assert disk.free_bytes(small_disk) > (KEPT_FREE_MB - 1) * MIB
    stage.restart()
    found = payloads(stage)
    assert sorted(found) == sorted(payload for sender in senders for payload in sender.acknowledged)
    for sender in senders:
        mine = [payload for payload in found if payload in set(sender.acknowledged)]
        assert mine == sender.acknowledged


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_log_that_runs_into_the_end_of_its_disk_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    sender = Sender(stage, size=1_000)
    sender.send()
    writer = type(stage.topic.log._segments.writer)

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, "out of order")

    with monkeypatch.context() as broken:
        broken.setattr(writer, "append", fail)
        with pytest.raises(LogUnavailableError) as caught:
            sender.send()
    assert isinstance(caught.value, DiskFullError) == (number != errno.EIO)
    assert caught.value.retryable
    wait_until(lambda: _accepted(sender))
    assert payloads(stage) == sender.acknowledged


def test_a_log_that_the_full_disk_stopped_gives_up_what_is_elsewhere_all_the_same(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may publish, so no append revives it."""
    sender = Sender(stage)
    for _ in range(50):
        sender.send()
    stage.commit()
    log, watched = stage.topic.log, stage.storage.disk

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(type(log._segments.writer), "append", fail)
        with pytest.raises(DiskFullError):
            sender.send()
    assert log.state is LogState.FAILED
    with monkeypatch.context() as full:
        full.setattr(watched, "_measure", lambda _: 0)
        assert not watched.look()
        with pytest.raises(DiskFullError):
            sender.send()
        wait_until(lambda: log.start_offset > 40)
    sender.send_until_accepted()
    assert payloads(stage) == sender.acknowledged


def _accepted(sender: Sender) -> bool:
    try:
        sender.send()
    except LogUnavailableError:
        return False
    return True
