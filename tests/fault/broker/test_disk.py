"""Disks that fill up, syncs that fail, files that may not grow: on a real broker, with real system calls."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fault.broker.conftest import failing_calls
from tests.fault.broker.load import Load
from tests.integration.flight.plain import PlainClient, error_of, failure, messages

from icestream import Client
from icestream.broker_process import BrokerProcess
from icestream.testing.history import PATIENCE_SECONDS, HistoryChecker, rows

TOPICS = ("disk/first", "disk/second")
PROBED = "disk/probed"
MAX_PROBES = 5_000
SMALL = {
    "ICESTREAM_WAL__MAX_FILE_SIZE": "65536",
    "ICESTREAM_WAL__PREALLOCATE_BYTES": "32768",
    "ICESTREAM_WAL__MIN_FREE_MB": "0",  # nothing is kept free: the log itself runs into the end of the disk
}


class Probe:
    """A producer that knows only the protocol: it sees every refusal, and sends again what was refused."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._client = PlainClient(broker.flight)
        self._stream = self._client.publishing()
        self.stored = 0

    def send(self) -> dict[str, Any] | None:
        """One message; its refusal, or None when it was acknowledged."""
        payload = f"{self.stored}:".encode() + b"x" * 1000
        answer = self._stream.publish(messages(payload), topic=PROBED, producer="probe", sequence=self.stored)
        if "error" in answer:
            return answer
        assert (answer["base_offset"], answer["count"]) == (self.stored, 1)
        assert "duplicate" not in answer
        self.stored += 1
        return None

    def send_until_refused(self, code: str = "disk_full") -> dict[str, Any]:
        refusal = next((answer for _ in range(MAX_PROBES) if (answer := self.send()) is not None), None)
        assert refusal is not None, "nothing was ever refused"
        return error_of(refusal, code)

    def send_until_accepted(self) -> None:
        assert any(self.send() is None for _ in range(MAX_PROBES)), "nothing is accepted although the fault has ended"

    def check(self) -> None:
        found = self._client.payloads(PROBED)
        assert found == [f"{number}:".encode() + b"x" * 1000 for number in range(self.stored)]

    def close(self) -> None:
        self._client.close()


def fill(path: Path) -> None:
    """Write until there is no room for a single byte more."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\1" * size):
                    pass


def broker_on(disk: Path) -> BrokerProcess:
    """All its data on one small disk, but its own messages elsewhere."""
    return BrokerProcess(disk / "data", environ=SMALL, log_file=disk.parent / "broker.log")


def check_topics(broker: BrokerProcess, oracle: HistoryChecker) -> None:
    with Client(broker.flight) as client:
        for topic in TOPICS:
            oracle.check(topic, rows(client.read(topic)))


def check_after_restarts(broker: BrokerProcess, oracle: HistoryChecker, probe: Probe) -> None:
    """What is there is there after a kill and after a clean stop as well."""
    probe.check()
    check_topics(broker, oracle)
    for stop in (broker.kill, broker.terminate):
        stop()
        broker.start()
        check_topics(broker, oracle)
        with Client(broker.flight) as client:
            assert client.describe_topic(PROBED).durable_end == probe.stored


@contextlib.contextmanager
def under_load(broker: BrokerProcess, oracle: HistoryChecker) -> Iterator[Probe]:
    """Load on some topics, and a probe that has published to another one; all is acknowledged at the end."""
    probe = Probe(broker)
    with Client(broker.flight) as client:
        for topic in TOPICS:
            client.create_topic(topic)
    assert probe.send() is None
    with Load(broker.flight, oracle, TOPICS, seed=1).running():
        oracle.wait_for_acks(200)
        yield probe
        oracle.wait_for_acks(oracle.acks + 200)
    probe.send_until_accepted()


def test_a_full_disk_refuses_with_its_cause_loses_nothing_and_when_there_is_room_all_goes_on(small_disk: Path) -> None:
    oracle, ballast = HistoryChecker(), small_disk / "ballast"
    with broker_on(small_disk) as broker:
        with under_load(broker, oracle) as probe:
            fill(ballast)
            error = probe.send_until_refused()
            assert error["retryable"]
            assert "No space left on device" in error["message"]
            assert PROBED in error["place"]
            for _ in range(20):
                assert probe.send() is not None
            probe.check()  # readers are served all the while
            ballast.unlink()
            probe.send_until_accepted()
        check_after_restarts(broker, oracle, probe)
        probe.close()


def test_the_client_waits_for_room_and_goes_on_without_being_told(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with broker_on(small_disk) as broker, Client(broker.flight) as client:
        probe = Probe(broker)
        with client.producer(PROBED, name="patient", retry_timeout=PATIENCE_SECONDS) as producer:
            assert probe.send() is None
            fill(ballast)
            probe.send_until_refused()
            first = probe.stored
            receipts = [producer.send(b"patient") for _ in range(10)]
            for _ in range(5):
                assert probe.send() is not None
            assert not any(receipt.done() for receipt in receipts)
            ballast.unlink()
            assert [receipt.result(PATIENCE_SECONDS) for receipt in receipts] == list(range(first, first + 10))
        assert client.read(PROBED)["payload"].to_pylist()[first:] == [b"patient"] * 10
        probe.close()


def test_a_broker_whose_own_messages_cannot_be_written_either_goes_on_when_there_is_room(small_disk: Path) -> None:
    oracle, ballast = HistoryChecker(), small_disk / "ballast"
    with BrokerProcess(small_disk / "data", environ=SMALL) as broker:
        assert broker.log_file.is_relative_to(small_disk)
        with under_load(broker, oracle) as probe:
            fill(ballast)
            fill(broker.log_file)  # the rest of its last page
            for _ in range(3):
                probe.send_until_refused()
            ballast.unlink()
            probe.send_until_accepted()
        check_topics(broker, oracle)
        probe.check()
        assert broker.terminate() == 0
        probe.close()


def test_a_topic_that_is_first_used_on_a_full_disk_is_refused_like_any_other(small_disk: Path) -> None:
    """Its record was made while there was room; its log is not."""
    ballast = small_disk / "ballast"
    with broker_on(small_disk) as broker:
        probe = Probe(broker)
        assert probe.send() is None
        broker.kill()
        broker.start()
        probe = Probe(broker)
        probe.stored = 1
        fill(ballast)
        error = probe.send_until_refused()
        assert error["retryable"]
        assert "No space left on device" in error["message"]
        ballast.unlink()
        probe.send_until_accepted()
        probe.check()
        probe.close()


def test_a_topic_cannot_be_made_on_a_full_disk_and_can_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with broker_on(small_disk) as broker:
        client = PlainClient(broker.flight)
        fill(ballast)
        error = failure(client.action, "create_topic", topic="disk/new")
        assert error["retryable"], error
        ballast.unlink()
        assert client.action("create_topic", topic="disk/new", if_not_exists=True)["durable_end"] == 0
        answer = client.publishing().publish(messages(b"x"), topic="disk/new")
        assert answer["base_offset"] == 0
        client.close()


@pytest.mark.parametrize(
    ("calls", "fault", "cause"),
    [
        ("pwritev,pwritev2", "error=EIO", "Input/output error"),
        ("pwritev,pwritev2", "error=EIO:when=3+3", "Input/output error"),
        ("pwritev,pwritev2", "error=ENOSPC", "No space left on device"),
        ("fdatasync", "error=EIO", "Input/output error"),
        ("fsync", "error=EIO", "Input/output error"),
    ],
    ids=["every write", "every third write", "no room", "every sync of a segment's end", "every sync of a directory"],
)
def test_calls_that_fail_lose_nothing_and_double_nothing_and_afterwards_all_goes_on(
    tmp_path: Path, strace: str, calls: str, fault: str, cause: str
) -> None:
    oracle = HistoryChecker()
    with BrokerProcess(tmp_path / "data", environ=SMALL) as broker:
        with under_load(broker, oracle) as probe:
            with failing_calls(strace, broker.pid, calls, fault):
                error = probe.send_until_refused("disk_full" if "No space" in cause else "log_unavailable")
                assert error["retryable"]
                assert cause in error["message"]
                for _ in range(20):
                    probe.send()
                probe.check()
            probe.send_until_accepted()
        check_after_restarts(broker, oracle, probe)
        probe.close()


def test_files_that_may_not_grow_give_short_writes_and_lose_nothing(tmp_path: Path) -> None:
    oracle = HistoryChecker()
    with BrokerProcess(tmp_path / "data", environ=SMALL | {"ICESTREAM_WAL__PREALLOCATE_BYTES": "0"}) as broker:
        with under_load(broker, oracle) as probe:
            _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (40_000, hard))
            error = probe.send_until_refused("log_unavailable")
            assert error["retryable"]
            assert "File too large" in error["message"]
            for _ in range(20):
                assert probe.send() is not None
            probe.check()
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))
            probe.send_until_accepted()
        check_after_restarts(broker, oracle, probe)
        probe.close()
