"""`icestream maintain` and `icestream verify` as a user runs them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers import require
from tests.topics import Topics

from icestream.broker_process import BrokerProcess

NOBODY = "grpc://127.0.0.1:1"


def icestream(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
    return subprocess.run(
        [sys.executable, "-m", "icestream.cli", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def verify(topics: Topics, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = icestream("verify", f"--data={topics.broker.data_dir}", "--json", *arguments)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[Topics]:
    environ = {"ICESTREAM_CATALOG__NAME": "icestream", "ICESTREAM_WAL__MAX_FILE_SIZE": str(1 << 20)}
    with BrokerProcess(tmp_path, environ=environ) as broker, Topics(broker, environ) as made:
        yield made


def test_tables_are_kept_and_verified(topics: Topics) -> None:
    require("spark")
    require("iceberg-jars")
    first, second = topics.create("web/clicks"), topics.create("web/views", partition_by=["bucket(2, key)"])
    for topic in (first, second):
        topics.fill(topic, 5)
    data = f"--data={topics.broker.data_dir}"
    planned = icestream("maintain", "--all", data, "--dry-run", "--compact", "--expire", "--manifests")
    assert planned.returncode == 0, planned.stderr
    assert "compact 5 files" in planned.stdout
    assert "nothing was changed" in planned.stdout

    done = icestream("maintain", "--all", data, "--json", "--master=local[1]")
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)["topics"]
    assert [report["topic"] for report in reports] == ["web/clicks", "web/views"]
    assert [report["after"]["files"] for report in reports] == [1, 1]

    shown = icestream("verify", "--all", data, f"--broker={topics.broker.flight}")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.count("sound") == 2


def test_a_stopped_brokers_files_are_verified(topics: Topics) -> None:
    topic = topics.create("web/clicks")
    topics.fill(topic, 3)
    topics.publish(topic, [b"waits"])
    code, found = verify(topics, "--all", f"--broker={topics.broker.flight}")
    assert code == 0, found
    in_use = icestream("verify", "--all", f"--data={topics.broker.data_dir}", f"--broker={NOBODY}")
    assert in_use.returncode == 1
    assert "--broker" in in_use.stderr

    topics.broker.terminate()
    code, offline = verify(topics, "web/clicks", f"--broker={NOBODY}")
    assert code == 0, offline
    keys = ("compared", "waiting", "lost", "committed_offset", "durable_end")
    assert [offline["topics"][0][key] for key in keys] == [30, 1, 0, 30, 31]
    assert [found["topics"][0][key] for key in keys] == [30, 1, 0, 30, 31]


def test_a_finding_is_told_and_the_exit_code_is_one(topics: Topics) -> None:
    topic = topics.create("web/clicks")
    table = topics.fill(topic, 2)
    path = table.iceberg.inspect.files().column("file_path")[0].as_py()
    Path(path.removeprefix("file://")).unlink()
    shown = icestream("verify", "web/clicks", f"--data={topics.broker.data_dir}", f"--broker={topics.broker.flight}")
    assert shown.returncode == 1
    assert "damaged: a data file is missing" in shown.stdout
    code, found = verify(topics, "web/clicks", f"--broker={topics.broker.flight}")
    assert code == 1
    assert found["sound"] is False
    assert found["topics"][0]["findings"][0]["kind"] == "damaged"


def test_a_topic_that_nobody_knows_is_a_finding(topics: Topics) -> None:
    code, found = verify(topics, "web/nobody", f"--broker={topics.broker.flight}")
    assert code == 1
    assert "neither" in found["topics"][0]["findings"][0]["text"]


@pytest.mark.parametrize("command", ["maintain", "verify"])
def test_topics_or_all_must_be_given(command: str) -> None:
    done = icestream(command)
    assert done.returncode == 2
    assert "--all" in done.stderr
