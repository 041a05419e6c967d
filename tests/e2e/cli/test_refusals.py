"""Commands while the broker refuses for now."""

import os
import subprocess
import sys
from pathlib import Path

from icestream.broker_process import BrokerProcess


def test_produce_says_that_the_disk_is_full_and_gives_up_when_it_is_told_to(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
    with BrokerProcess(tmp_path / "data", environ={"ICESTREAM_WAL__MIN_FREE_MB": "900000000"}) as broker:
        done = subprocess.run(
            [sys.executable, "-m", "icestream.cli", "produce", "e2e/full", "--timeout", "6", "--broker", broker.flight],
            input=b"a\nb\n",
            capture_output=True,
            env=clean,
            timeout=120,
            check=False,
        )
    waiting, error = done.stderr.decode().splitlines()
    assert waiting.startswith("waiting: disk_full: ")
    assert waiting.endswith("; trying again")
    assert "accepted nothing for 6.0 s" in error
    assert (done.returncode, done.stdout.split(b" ")[0]) == (1, b"0")
