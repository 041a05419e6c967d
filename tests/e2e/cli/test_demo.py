import json
import os
import subprocess
import sys
from pathlib import Path


def demo(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The demo with its temporary files in `directory`."""
    return subprocess.run(
        [sys.executable, "-m", "icestream.cli", "demo", "--messages", "2000", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"TMPDIR": str(directory)},
        cwd=directory,
        timeout=400,
        check=False,
    )


def test_everything_matches_and_nothing_is_left(tmp_path: Path) -> None:
    result = demo(tmp_path)
    assert result.returncode == 0, result.stderr
    assert "All checks passed." in result.stdout
    assert "WRONG" not in result.stdout
    assert not list(tmp_path.iterdir())


def test_kept_data_is_sound_and_a_second_run_takes_another_topic(tmp_path: Path) -> None:
    for topic in ("default/demo", "default/demo-2"):
        result = demo(tmp_path, "--data", "kept", "--json")
        answer = json.loads(result.stdout)
        assert (result.returncode, answer["ok"], answer["topic"]) == (0, True, topic)
        log = tmp_path / "kept" / "wal" / topic
        found = subprocess.run(
            [sys.executable, "-m", "icestream.cli", "wal", "inspect", str(log), "--json"],
            capture_output=True,
            check=True,
        )
        assert json.loads(found.stdout)["end_offset"] == 2000
