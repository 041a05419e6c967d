import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from icestream.broker_process import BrokerProcess

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
Publish = Callable[[str, bytes], None]


def test_an_unknown_topic_is_one_sentence(icestream: Run) -> None:
    for command in (("consume", "no/such"), ("stats", "no/such"), ("topic", "describe", "no/such")):
        result = icestream(*command)
        assert (result.returncode, result.stdout) == (1, b"")
        assert b"there is no such topic [no/such]" in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "command", [("stats",), ("consume", "t"), ("produce", "t"), ("topic", "list"), ("top", "--once")]
)
def test_a_broker_that_does_not_run_is_one_sentence(icestream: Run, command: tuple[str, ...]) -> None:
    result = icestream(*command, "--broker", "grpc://127.0.0.1:1")
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"cannot reach a broker at grpc://127.0.0.1:1" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("produce", "../up"), b"is not a legal topic namespace"),
        (("produce", "t", "no-such-file"), b"no-such-file: No such file or directory"),
        (("stats", "--broker", "ftp://x"), b"'ftp://x' is not a broker's address"),
        (("topic", "create", "t", "--schema", "no-such-file"), b"no-such-file: No such file or directory"),
        (("wal", "inspect", "no-such-directory"), b"this is not a directory [no-such-directory]"),
        (("wal", "inspect", "."), b"the directory holds no log"),
    ],
)
def test_what_fails_exits_with_1(icestream: Run, command: tuple[str, ...], sentence: bytes) -> None:
    result = icestream(*command)
    assert (result.returncode, result.stdout) == (1, b"")
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [
        ("nope",),
        ("produce",),
        ("produce", "t", "--key", "id"),
        ("produce", "t", "--ack", "sometimes"),
        ("consume", "t", "--from", "yesterday"),
        ("consume", "t", "--max", "0"),
        ("topic", "update", "t"),
        ("topic", "create", "t", "--codec", "arrow"),
        ("serve", "--flight-port", "x"),
    ],
)
def test_wrong_use_exits_with_2(icestream: Run, command: tuple[str, ...]) -> None:
    result = icestream(*command)
    assert (result.returncode, result.stdout) == (2, b"")
    assert b"Error: " in result.stderr


class TestServe:
    def test_a_second_broker_on_the_same_data_is_refused(self, icestream: Run, broker: BrokerProcess) -> None:
        ports = ("--flight-port=0", "--http-port=0", "--otlp-grpc-port=0", "--otlp-http-port=0")
        result = icestream("serve", "--data", str(broker.data_dir), *ports)
        assert (result.returncode, result.stdout) == (1, b"")
        assert f"another broker uses this data directory (process {broker.pid})".encode() in result.stderr

    def test_a_setting_that_is_wrong_is_named(self, icestream: Run, tmp_path: Path) -> None:
        (tmp_path / "broker.yaml").write_text("wal: {sync_mode: sometimes}\n")
        result = icestream("serve", "--config", "broker.yaml")
        assert result.returncode == 1
        assert b"wal.sync_mode (broker.yaml, line 1)" in result.stderr

    def test_a_log_in_use_is_not_repaired(self, icestream: Run, publish: Publish, broker: BrokerProcess) -> None:
        publish("e2e/in-use", b"x\n")
        log = broker.data_dir / "wal" / "e2e" / "in-use"
        assert icestream("wal", "inspect", str(log)).returncode == 0
        result = icestream("wal", "repair", str(log), "--yes")
        assert result.returncode == 1
        assert b"another broker uses this data directory" in result.stderr
