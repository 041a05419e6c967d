import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from icestream.cli.main import cli
from icestream.config import Settings
from icestream.model.offsets import StartPosition
from icestream.storage import IcebergStorage


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["wal", *arguments], input=stdin)


def storage(directory: Path) -> IcebergStorage:
    return IcebergStorage(Settings(data_dir=directory))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of three frames of two messages."""

    async def write() -> None:
        async with storage(tmp_path) as opened:
            await opened.initialize_topic("default/t")
            for _ in range(3):
                await opened.store("default/t", [b"first", b"second"])

    asyncio.run(write())
    return tmp_path / "wal" / "default" / "t"


@pytest.fixture
def damaged(log: Path) -> Path:
    """The second frame has a changed byte."""
    second = json.loads(run("inspect", str(log), "--frames", "--json").stdout)["frames"][1]
    with (log / second["file"]).open("r+b") as file:
        file.seek(second["position"] + second["bytes"] // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    return log


def test_a_sound_log_is_said_to_be_sound(log: Path) -> None:
    result = run("inspect", str(log))
    assert result.exit_code == 0
    assert "default/t, stream " in result.stdout
    assert "sound: 6 messages, offsets 0 to 5, next 6" in result.stdout


def test_frames_are_listed_up_to_the_limit(log: Path) -> None:
    frames = json.loads(run("inspect", str(log), "--frames", "--json", "--limit", "2").stdout)["frames"]
    assert [(frame["base_offset"], frame["messages"]) for frame in frames] == [(0, 2), (2, 2)]
    assert "frames" not in json.loads(run("inspect", str(log), "--json").stdout)
    assert run("inspect", str(log), "--frames").stdout.count("00000000000000000000.log") == 4


def test_damage_is_named_with_file_place_and_offsets_and_exits_with_1(damaged: Path) -> None:
    result = run("inspect", str(damaged))
    assert result.exit_code == 1
    assert "offsets 2 to 3" in " ".join(result.stdout.split())
    report = run("inspect", str(damaged), "--json")
    assert report.exit_code == 1
    (problem,) = json.loads(report.stdout)["problems"]
    assert (problem["first_offset"], problem["end_offset"]) == (2, 4)


def test_a_repair_gives_up_what_is_lost_and_keeps_the_rest(damaged: Path, tmp_path: Path) -> None:
    result = run("repair", str(damaged), "--yes", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["lost"], report["lost_messages"]) == ([[2, 4]], 2)
    assert run("inspect", str(damaged)).exit_code == 0
    assert list((damaged / "torn").iterdir())
    with storage(tmp_path) as opened:
        offsets = [
            offset
            for batch in opened.topic("t").read(opened.topic("t").reader(StartPosition.earliest()))
            for offset in batch.column("offset").to_pylist()
        ]
    assert offsets == [0, 1, 4, 5]


def test_a_repair_asks_first(damaged: Path) -> None:
    refused = run("repair", str(damaged), stdin="n\n")
    assert refused.exit_code == 1
    assert "Repair this log?" in refused.stderr
    assert run("inspect", str(damaged)).exit_code == 1
    agreed = run("repair", str(damaged), stdin="y\n")
    assert agreed.exit_code == 0
    assert "lost: 2 messages, offsets 2 to 3" in agreed.stdout


def test_a_sound_log_is_left_alone(log: Path) -> None:
    before = {path.name: path.read_bytes() for path in log.iterdir() if path.is_file()}
    result = run("repair", str(log))
    assert (result.exit_code, result.stdout) == (0, "nothing to repair\n")
    assert {path.name: path.read_bytes() for path in log.iterdir() if path.is_file()} == before


def test_a_log_in_use_is_not_repaired(log: Path, tmp_path: Path) -> None:
    with storage(tmp_path):
        result = run("repair", str(log), "--yes")
    assert result.exit_code == 1
    assert "another broker uses this data directory" in result.stderr
