"""Topics in the cloud from the command line: upload, look, lose the disk, recover, verify."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from icestream.broker_process import BrokerProcess
from icestream.cli.main import cli

TOPIC = "e2e/events"
PATIENCE_SECONDS = 300.0


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Objects in a directory beside the broker's disk; uploaded when somebody asks for it."""
    return {
        "ICESTREAM_CLOUD__BACKEND": "fs",
        "ICESTREAM_CLOUD__ROOT": str(tmp_path_factory.mktemp("objects")),
        "ICESTREAM_UPLOADER__ENABLED": "true",
        "ICESTREAM_UPLOADER__INTERVAL_SECONDS": "86400",
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("cloudy")
    with BrokerProcess(folder / "data", environ=settings, log_file=folder / "broker.log") as process:
        yield process


@pytest.fixture(scope="module")
def icestream(broker: BrokerProcess, settings: dict[str, str]) -> Run:
    """Runs a command with the broker's own settings: in this process, unless it needs streams of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
    ours = settings | {"ICESTREAM_BROKER": broker.flight, "ICESTREAM_DATA_DIR": str(broker.data_dir)}

    def run(*arguments: str, stdin: str = "", code: int = 0, cloud: bool = True) -> Done:
        if arguments[0] not in {"produce", "consume", "verify"}:
            result = CliRunner().invoke(cli, arguments, env={**dict.fromkeys(os.environ.keys() - clean.keys()), **ours})
            done = Done(result.exit_code, result.stdout, result.stderr)
        else:
            process = subprocess.run(
                [sys.executable, "-m", "icestream.cli", *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                env=clean | (ours if cloud else {name: ours[name] for name in ours.keys() - settings.keys()}),
                timeout=PATIENCE_SECONDS,
                check=False,
            )
            done = Done(process.returncode, process.stdout, process.stderr)
        assert done.code == code, done
        return done

    return run


@pytest.fixture(scope="module")
def uploaded(icestream: Run) -> Run:
    """A topic of 300 messages in two objects, and a log topic of 3 in one."""
    for first in (0, 150):
        icestream("produce", TOPIC, stdin="".join(f"{number}\n" for number in range(first, first + 150)))
        told = icestream("topic", "flush", TOPIC).stdout
        assert told == f"{TOPIC}: the cloud has offsets 0 to {first + 149}, next {first + 150}\n"
    icestream("topic", "create", "e2e/raw", "--storage", "log")
    icestream("produce", "e2e/raw", stdin="a\nb\nc\n")
    icestream("topic", "flush", "e2e/raw", "--json")
    return icestream


def test_the_commands_tell_how_far_the_cloud_is(uploaded: Run) -> None:
    described = uploaded("topic", "describe", TOPIC).stdout
    assert "in log     offsets 0 to 299, next 300" in described
    assert "in cloud   offsets 0 to 299, next 300" in described
    raw = json.loads(uploaded("topic", "describe", "e2e/raw", "--json").stdout)
    assert (raw["storage"], raw["uploaded_offset"], raw["cloud_start_offset"]) == ("log", 3, 0)
    assert "in table   it has no table" in uploaded("topic", "describe", "e2e/raw").stdout
    listed = uploaded("topic", "list").stdout
    assert "in cloud" in listed
    figures = json.loads(uploaded("stats", "--json").stdout)
    assert [(topic["topic"], topic["cloud_objects"]) for topic in figures["topics"]] == [(TOPIC, 2), ("e2e/raw", 1)]
    assert "last upload" in uploaded("stats").stdout
    assert "upload lag" in uploaded("top", "--once", "--interval", "0.1").stdout


def test_objects_are_listed_and_one_is_inspected(uploaded: Run) -> None:
    listed = json.loads(uploaded("cloud", "list", TOPIC, "--json").stdout)
    assert [(one["first_offset"], one["end_offset"]) for one in listed["objects"]] == [(0, 150), (150, 300)]
    assert "offsets 0 to 299, next 300; 2 objects of" in uploaded("cloud", "list", TOPIC).stdout
    for which in ("200", listed["objects"][1]["key"], listed["objects"][1]["key"].rpartition("/")[2]):
        inspected = json.loads(uploaded("cloud", "inspect", TOPIC, which, "--json").stdout)
        assert inspected["sound"]
        assert inspected["object"]["first_offset"] == 150
        assert sum(frame["messages"] for frame in inspected["frames"]) == 150
    assert uploaded("cloud", "inspect", TOPIC, "0").stdout.endswith("are intact\n")
    assert "there are offsets 0 to 299, next 300" in uploaded("cloud", "inspect", TOPIC, "300", code=1).stderr
    uploaded("cloud", "inspect", TOPIC, "no-number", code=2)


def test_a_damaged_object_is_found_and_named(uploaded: Run, settings: dict[str, str]) -> None:
    listed = json.loads(uploaded("cloud", "list", TOPIC, "--json").stdout)
    key = listed["objects"][0]["key"]
    (path,) = Path(settings["ICESTREAM_CLOUD__ROOT"]).rglob(key.rpartition("/")[2])
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    try:
        inspected = uploaded("cloud", "inspect", TOPIC, "0", code=1).stdout
        assert "damaged: " in inspected
        verified = json.loads(uploaded("verify", TOPIC, "--json", code=1).stdout)
        (finding,) = verified["topics"][0]["findings"]
        assert (finding["kind"], finding["first_offset"], finding["last_offset"]) == ("damaged", 0, 149)
        assert key in finding["place"]
    finally:
        path.write_bytes(whole)
    uploaded("verify", "--all")


def test_who_verifies_without_the_brokers_settings_is_told_what_was_not_looked_at(uploaded: Run) -> None:
    verified = json.loads(uploaded("verify", TOPIC, "--json", cloud=False).stdout)
    assert verified["sound"]
    assert (verified["topics"][0]["cloud_objects"], len(verified["topics"][0]["notes"])) == (0, 1)
    assert "--config" in verified["topics"][0]["notes"][0]


def test_a_lost_disk_is_recovered_and_what_was_not_uploaded_is_said_to_be_lost(
    uploaded: Run, broker: BrokerProcess
) -> None:
    uploaded("produce", TOPIC, stdin="never uploaded\n")
    broker.kill()
    shutil.rmtree(broker.data_dir)
    broker.start()
    assert "there is no such topic" in uploaded("topic", "describe", TOPIC, code=1).stderr
    unsound = json.loads(uploaded("verify", "--all", "--json", code=1).stdout)
    assert [(topic["topic"], topic["sound"]) for topic in unsound["topics"]] == [(TOPIC, False), ("e2e/raw", False)]
    told = uploaded("topic", "recover", TOPIC)
    assert f"{TOPIC} is recovered: epoch 2" in told.stdout
    assert "the cloud has offsets 0 to 299, next 300 in 2 objects of" in told.stdout
    assert told.stderr.startswith(f"warning: {TOPIC}: ")
    assert "offsets 300 to " in told.stderr
    report = json.loads(uploaded("topic", "recover", "--all", "--json").stdout)
    assert [topic["topic"] for topic in report["topics"]] == ["e2e/raw"]
    assert report["failed"] == {}
    assert uploaded("topic", "recover", "--all").stdout == "nothing to recover\n"
    assert "nothing to recover" in uploaded("topic", "recover", TOPIC, code=1).stderr
    payloads = uploaded("consume", TOPIC, "--format", "raw").stdout.split()
    assert payloads == [str(number) for number in range(300)]
    uploaded("produce", TOPIC, stdin="again\n")
    assert uploaded("consume", TOPIC, "--from", "299", "--format", "raw").stdout.split() == ["299", "again"]
    uploaded("topic", "flush", TOPIC)
    verified = json.loads(uploaded("verify", "--all", "--json").stdout)
    assert verified["sound"]
    assert verified["topics"][0]["cloud_end"] > 300


def test_topics_are_recovered_by_name_or_all(icestream: Run) -> None:
    assert "Name a topic, or give --all" in icestream("topic", "recover", code=2).stderr
    icestream("topic", "recover", TOPIC, "--all", code=2)
