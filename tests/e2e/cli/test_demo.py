import json
import os
import subprocess
import sys
from pathlib import Path


def test_a_demo_passes_its_checks_and_leaves_sound_data_where_it_is_told_to(tmp_path: Path) -> None:
    """One run for all: the demo starts Spark, and takes half a minute."""
    command = [sys.executable, "-m", "icestream.cli"]
    result = subprocess.run(
        [*command, "demo", "--messages", "2000", "--data", "kept"],
        capture_output=True,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        timeout=400,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "All checks passed." in result.stdout
    assert "WRONG" not in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["kept"], "temporary files are left"
    log = tmp_path / "kept" / "wal" / "default" / "demo"
    found = subprocess.run([*command, "wal", "inspect", str(log), "--json"], capture_output=True, check=True)
    assert json.loads(found.stdout)["end_offset"] == 2000
