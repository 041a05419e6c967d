import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.flight.plain import PATIENCE_SECONDS, PlainClient, messages

from icestream.broker_process import BrokerProcess


@pytest.mark.parametrize("metadata_elsewhere", [False, True])
def test_a_second_broker_on_the_same_directory_ends_with_one_clear_sentence(
    tmp_path: Path, metadata_elsewhere: bool
) -> None:
    """Also when only the logs' directory is shared: that is what must not have two owners."""
    with BrokerProcess(tmp_path / "data") as first:
        client = PlainClient(first.flight)
        stream = client.publishing()
        assert stream.publish(messages(b"a"), topic="two/brokers")["base_offset"] == 0
        arguments = [f"--data={tmp_path / 'data'}"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
        if metadata_elsewhere:
            arguments = [f"--data={tmp_path / 'other'}"]
            environ |= {"ICESTREAM_WAL__DIR": str(tmp_path / "data" / "wal")}
        second = subprocess.run(
            [sys.executable, "-m", "icestream.cli", "serve", *arguments, "--flight-port=0", "--http-port=0"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert second.returncode == 1, second.stderr
        assert second.stdout == ""
        (sentence,) = second.stderr.strip().splitlines()
        assert "another broker uses this data directory" in sentence
        assert f"process {first.pid}" in sentence
        assert str(tmp_path / "data" / "wal") in sentence
        # The first one did not notice.
        assert stream.publish(messages(b"b"), topic="two/brokers")["base_offset"] == 1
        client.close()
        first.kill()
        first.start()  # the lock went with the process
        client = PlainClient(first.flight)
        assert client.payloads("two/brokers") == [b"a", b"b"]
        client.close()
