"""`icestream pipeline` as a process: `--once`, signals, and kills of the driver. Kills of tasks: tests/fault."""

import base64
import json
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fault.pipeline.crash_at import DRIVER_POINTS, INLINE, crashing, crashing_environ
from tests.integration.pipeline.conftest import Pipelines

from icestream.model.errors import IcestreamError
from icestream.pipeline.supervisor import pipeline_supervisor
from icestream.table import TableSpec

Once = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def once(pipelines: Pipelines) -> Once:
    """Runs `icestream pipeline --once` for the test's topics."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}

    def run(*arguments: str, crash_at: str = "", **environ: str) -> "subprocess.CompletedProcess[str]":
        command = crashing(crash_at) if crash_at else [sys.executable, "-m", "icestream.cli"]
        environ |= crashing_environ() if crash_at else {}
        command += ["pipeline", "--once", "--master", "local[2]"]
        command += ["--topics", f"{pipelines.namespace}/*", "--data", str(pipelines.data_dir)]
        command += ["--broker", pipelines.client.url, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=clean | environ, timeout=180, check=False)

    return run


def test_once_drains_what_is_durable_and_shows_figures(pipelines: Pipelines, once: Once) -> None:
    pipelines.publish("a", [b"1", b"2"])
    pipelines.publish("b", [b"3"])
    done = once()
    assert done.returncode == 0, done.stderr
    assert f"{pipelines.namespace}/a" in done.stdout
    assert "3 messages in" in done.stdout
    pipelines.check("a", [b"1", b"2"])
    pipelines.check("b", [b"3"])


def test_once_with_nothing_to_do_needs_no_spark(once: Once) -> None:
    done = once("--json", JAVA_HOME="/nowhere", PATH="/nowhere")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"] == 0


def test_once_says_which_topic_could_not_be_written(pipelines: Pipelines, once: Once) -> None:
    pipelines.publish("fine", [b"1"])
    schema = pipelines.client.read(pipelines.topic("fine")).schema
    pipelines.tables.open(TableSpec(pipelines.topic("taken"), "another stream", 1, schema))
    pipelines.publish("taken", [b"2"])
    done = once("--json", crash_at=INLINE)
    assert done.returncode == 1
    assert f"not completely written: {pipelines.namespace}/taken" in done.stderr
    told = {topic["topic"]: topic for topic in json.loads(done.stdout)["topics"]}
    assert "another stream" in told[f"{pipelines.namespace}/taken"]["error"]
    pipelines.check("fine", [b"1"])


def test_once_says_that_the_broker_has_another_catalog(pipelines: Pipelines, once: Once, tmp_path: Path) -> None:
    pipelines.publish("astray", [b"1"])
    done = once("--data", str(tmp_path / "other"), crash_at=INLINE)
    assert done.returncode == 1
    assert f"does not have what was committed for {pipelines.namespace}/astray" in done.stderr
    pipelines.drain(pipelines.runner())
    pipelines.check("astray", [b"1"])


def test_a_broker_that_is_not_there_is_one_clear_sentence(once: Once) -> None:
    done = once("--broker", "grpc://127.0.0.1:1")
    assert done.returncode == 1
    assert "cannot reach a broker" in done.stderr.strip().splitlines()[-1]


def test_a_driver_that_is_killed_at_a_named_point_has_committed_or_not(pipelines: Pipelines, once: Once) -> None:
    published: list[bytes] = []

    def publish(text: str) -> None:
        pipelines.publish("killed", [text.encode()] * 3)
        published.extend([text.encode()] * 3)

    for point in DRIVER_POINTS:
        publish(point)
        assert once(crash_at=f"{INLINE},{point}").returncode == -signal.SIGKILL
        table = pipelines.tables.find(pipelines.topic("killed"))
        assert table is not None
        expected = len(published) if point == "after-commit" else len(published) - 3
        assert table.ledger.committed_offset == expected
        pipelines.drain(pipelines.runner())
        pipelines.check("killed", published)


def test_a_supervised_pipeline_writes_survives_a_kill_and_stops_when_asked(
    pipelines: Pipelines, tmp_path: Path
) -> None:
    settings = pipelines.settings(
        pipeline={"restart_interval_ms": 1, "master": "local[2]"}, writer={"flush_interval_ms": 100}
    ).model_copy(update={"data_dir": tmp_path})
    supervisor = pipeline_supervisor(settings, pipelines.client.endpoint)
    supervisor.start()
    try:
        with pipelines.client.producer(pipelines.topic("kept")) as producer:
            assert producer.send(b"1").wait_committed(timeout=120).snapshot_id
            pid = supervisor.state.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert producer.send(b"2").wait_committed(timeout=120).snapshot_id
        assert supervisor.state.starts == 2
    finally:
        supervisor.stop(60)
    assert supervisor.state.last_exit == 0
    pipelines.check("kept", [b"1", b"2"])


def test_a_supervised_pipeline_and_its_jvm_end_with_whoever_started_them(pipelines: Pipelines, tmp_path: Path) -> None:
    script = (
        "import sys, time, pickle, base64\n"
        "from icestream.client import BrokerEndpoint\n"
        "from icestream.pipeline.supervisor import pipeline_supervisor\n"
        "settings = pickle.loads(base64.b64decode(sys.argv[1]))\n"
        "pipeline_supervisor(settings, BrokerEndpoint(sys.argv[2])).start()\n"
        "time.sleep(600)\n"
    )
    settings = pipelines.settings(pipeline={"master": "local[2]"}, writer={"flush_interval_ms": 50}).model_copy(
        update={"data_dir": tmp_path}
    )
    with subprocess.Popen([sys.executable, "-c", script, _encoded(settings), pipelines.client.url]) as parent:
        try:
            with pipelines.client.producer(pipelines.topic("orphan")) as producer:
                assert producer.send(b"1").wait_committed(timeout=120).snapshot_id
            children = _descendants(parent.pid)
            assert len(children) > 2
        finally:
            parent.kill()
            parent.wait()
    for child in children:
        _wait_for_end(child)


def _encoded(settings: Any) -> str:
    return base64.b64encode(pickle.dumps(settings)).decode()


def _descendants(pid: int) -> list[int]:
    found = [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += [int(text) for text in (thread / "children").read_text().split()]
    found = sorted(set(found))
    return [*found, *(deeper for child in found for deeper in _descendants(child))]


def _wait_for_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([descriptor], [], [], 60)
        if not ended:
            os.kill(pid, signal.SIGKILL)
            raise IcestreamError(f"process {pid} was left behind")
    finally:
        os.close(descriptor)
