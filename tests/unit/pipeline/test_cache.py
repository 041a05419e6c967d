import subprocess
import sys
from pathlib import Path

import pytest

from icestream.pipeline.spark.cache import cache_dir, obtain

OBTAIN_SLOWLY = """
import sys, time
from pathlib import Path
from icestream.pipeline.spark.cache import obtain

def build(path):
    path.mkdir()
    (path / "one").write_text("1")
    time.sleep(0.2)
    (path / "two").write_text("2")
    print("built")

found = obtain(Path(sys.argv[1]), build)
assert {file.name for file in found.iterdir()} == {"one", "two"}
"""


def test_processes_that_race_build_once_and_see_it_whole(tmp_path: Path) -> None:
    racing = [
        subprocess.Popen([sys.executable, "-c", OBTAIN_SLOWLY, str(tmp_path / "entry")], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    said = [process.communicate(timeout=60)[0] for process in racing]
    assert [process.returncode for process in racing] == [0] * 4
    assert b"".join(said) == b"built\n"


def test_a_failed_build_leaves_nothing_and_is_tried_again(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.mkdir()
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        obtain(tmp_path / "entry", fail)
    assert {path.name for path in tmp_path.iterdir()} == {".lock"}
    assert obtain(tmp_path / "entry", lambda path: path.mkdir()).is_dir()


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".building-left" / "half").mkdir(parents=True)
    obtain(tmp_path / "entry", lambda path: path.mkdir())
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "entry"}


def test_the_folder_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ICESTREAM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "icestream"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "icestream"
    monkeypatch.setenv("ICESTREAM_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
