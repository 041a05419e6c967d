"""`icestream serve` with tokens, from end to end: its own pipeline writes tables, and commands need a token."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream import Client
from icestream.broker_process import BrokerProcess

ACME, GLOBEX, ROOT = "acme-token-e2e-1", "globex-token-e2e-1", "root-token-e2e-1"
TOPIC = "acme/events"
PATIENCE_SECONDS = 180.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    environ = {"ICESTREAM_AUTH__TOKENS": f"acme={ACME} globex={GLOBEX} *={ROOT}"}
    with BrokerProcess(tmp_path_factory.mktemp("tokens") / "data", environ=environ, pipeline=True) as process:
        yield process
        assert process.terminate() == 0, process.log()


def icestream(
    broker: BrokerProcess, *arguments: str, stdin: bytes = b"", **environ: str
) -> "subprocess.CompletedProcess[bytes]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
    return subprocess.run(
        [sys.executable, "-m", "icestream.cli", *arguments],
        input=stdin,
        capture_output=True,
        env=clean | {"ICESTREAM_BROKER": broker.flight} | environ,
        cwd=broker.data_dir,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def _children(pid: int) -> list[str]:
    with contextlib.suppress(OSError):  # it has ended meanwhile
        return [text for file in Path(f"/proc/{pid}/task").glob("*/children") for text in file.read_text().split()]
    return []


def children_of(pid: int) -> dict[int, tuple[bytes, bytes]]:
    """Command line and environment of all processes below one."""
    found: dict[int, tuple[bytes, bytes]] = {}
    parents = {pid}
    while parents:
        born = [int(text) for parent in parents for text in _children(parent)]
        parents = set(born) - found.keys()
        for child in parents:
            place = Path(f"/proc/{child}")
            with contextlib.suppress(OSError):  # it has ended meanwhile
                found[child] = ((place / "cmdline").read_bytes(), (place / "environ").read_bytes())
    return found


def test_messages_reach_the_table_and_come_back_with_the_token(broker: BrokerProcess) -> None:
    sent = icestream(broker, "produce", TOPIC, "--json", stdin=b"one\ntwo\n", ICESTREAM_TOKEN=ACME)
    assert sent.returncode == 0, sent.stderr
    with Client(broker.flight, token=ACME) as client, client.producer(TOPIC) as producer:
        receipt = producer.send(b"three")
        assert receipt.wait_committed(timeout=PATIENCE_SECONDS).snapshot_id is not None
    consumed = icestream(broker, "consume", TOPIC, "--format", "raw", "--token", ACME)
    assert (consumed.returncode, consumed.stdout.split()) == (0, [b"one", b"two", b"three"])
    asked = icestream(broker, "sql", "--committed", "--json", "SELECT count(*) AS n FROM acme.events", "--token", ACME)
    assert (asked.returncode, json.loads(asked.stdout)) == (0, {"n": 3})


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", TOPIC),
        ("produce", TOPIC),
        ("topic", "list"),
        ("topic", "delete", TOPIC, "--yes"),
        ("stats",),
        ("sql", "SELECT * FROM acme.events"),
        ("subscription", "list"),
        ("pipeline", "--once"),
    ],
)
def test_without_the_token_every_command_fails_in_one_sentence(
    broker: BrokerProcess, arguments: tuple[str, ...]
) -> None:
    refused = icestream(broker, *arguments, stdin=b"x\n")
    assert refused.returncode == 1, refused.stderr
    assert b"a token is needed" in refused.stderr
    assert b"Traceback" not in refused.stderr
    wrong = icestream(broker, *arguments, "--token", "wrong-token-e2e", stdin=b"x\n")
    assert wrong.returncode == 1
    assert b"the token is unknown" in wrong.stderr
    assert b"wrong-token-e2e" not in wrong.stdout + wrong.stderr


def test_anothers_token_sees_nothing(broker: BrokerProcess) -> None:
    refused = icestream(broker, "consume", TOPIC, "--token", GLOBEX)
    assert refused.returncode == 1
    assert b"for another namespace" in refused.stderr
    listed = icestream(broker, "topic", "list", "--json", "--token", GLOBEX)
    assert (listed.returncode, json.loads(listed.stdout)) == (0, {"topics": []})


def test_a_pipeline_of_ones_own_takes_a_token(broker: BrokerProcess) -> None:
    done = icestream(broker, "pipeline", "--once", "--json", "--data", str(broker.data_dir), ICESTREAM_TOKEN=ROOT)
    assert done.returncode == 0, done.stderr
    refused = icestream(broker, "pipeline", "--once", "--data", str(broker.data_dir), ICESTREAM_TOKEN=ACME)
    assert refused.returncode == 1
    assert b"this needs full access" in refused.stderr


def test_who_may_not_look_is_not_told_of_damage(broker: BrokerProcess) -> None:
    refused = icestream(broker, "verify", TOPIC, "--data", str(broker.data_dir), "--token", ACME)
    assert refused.returncode == 1
    assert b"this needs full access" in refused.stderr
    assert b"damaged" not in refused.stdout + refused.stderr


def test_no_token_is_on_a_command_line_in_a_log_or_left_to_sparks_processes(broker: BrokerProcess) -> None:
    with Client(broker.flight, token=ACME) as client, client.producer("acme/other", ack="table") as producer:
        producer.send(b"so that Spark runs").result()
    below = children_of(broker.pid)
    assert any(b"java" in command for command, _ in below.values())
    tokens = {
        entry.partition(b"=")[2]
        for _, environ in below.values()
        for entry in environ.split(b"\0")
        if entry.startswith(b"ICESTREAM_TOKEN=")
    }
    (own,) = tokens
    assert len(own) > 30
    having = [command for command, environ in below.values() if own in environ]
    assert [b"pipeline" in command for command in having] == [True]
    secrets = [own, *(token.encode() for token in (ACME, GLOBEX, ROOT))]
    logs = [file.read_bytes() for file in broker.data_dir.glob("*.log")]
    assert logs  # the broker's; the pipeline's begins with the first line that there is to say
    for secret in secrets:
        assert not any(secret in command for command, _ in below.values())
        assert not any(secret in log for log in logs)
