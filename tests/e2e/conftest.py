import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from icestream.broker_process import BrokerProcess

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
Publish = Callable[[str, bytes], None]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A real broker process, shared by the tests of a module; it must stop gracefully at the end."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process
        assert process.terminate() == 0, process.log()


@pytest.fixture(scope="module")
def environ(broker: BrokerProcess) -> dict[str, str]:
    """For commands that talk to the broker."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
    return clean | {"ICESTREAM_BROKER": broker.flight}


@pytest.fixture
def icestream(environ: dict[str, str], tmp_path: Path) -> Run:
    """Runs `icestream …` in a directory of its own, with bytes for stdin."""

    def run(*arguments: str, stdin: bytes = b"", **more: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [sys.executable, "-m", "icestream.cli", *arguments],
            input=stdin,
            capture_output=True,
            env=environ | more,
            cwd=tmp_path,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def publish(icestream: Run) -> Publish:
    """Publishes lines and sees that they are acknowledged."""

    def run(topic: str, lines: bytes) -> None:
        result = icestream("produce", topic, stdin=lines)
        assert result.returncode == 0, result.stderr

    return run


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of the test's own."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"e2e/{name[:90]}"
