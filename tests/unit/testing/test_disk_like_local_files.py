"""Programs cannot tell the simulated disk from the local file system."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.testing import SimulatedDisk
from icestream.wal.files import File, Files, LocalFiles

PATHS = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "missing/a"])
SLOTS = st.integers(0, 2)
POSITIONS = st.integers(0, 1500)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["read_bytes", "exists", "size", "names", "make_directory", "remove"]), PATHS),
    st.tuples(st.sampled_from(["remove_tree", "sync_directory"]), PATHS),
    st.tuples(st.just("replace"), PATHS, PATHS),
    st.tuples(st.just("open"), SLOTS, PATHS, st.booleans()),
    st.tuples(
        st.sampled_from(["write", "write_durably"]),
        SLOTS,
        st.lists(st.binary(max_size=700), max_size=3),
        POSITIONS,  # from 0 on: what a write at a negative position does depends on the kernel and on the buffers
    ),
    st.tuples(st.just("read"), SLOTS, POSITIONS, POSITIONS),
    st.tuples(st.sampled_from(["allocate", "truncate"]), SLOTS, st.integers(-1, 1500)),
    st.tuples(st.sampled_from(["datasync", "file_size", "close"]), SLOTS),
)


class Script:
    """Carries out steps on some files and says what a program would have seen."""

    def __init__(self, files: Files, root: Path) -> None:
        self.files = files
        self.root = root
        self.slots: dict[int, File] = {}

    def run(self, step: tuple[Any, ...]) -> object:
        try:
            return self.act(*step)
        except OSError as error:
            return _shape(error)

    def act(self, verb: str, *arguments: Any) -> object:
        match verb, arguments:
            case "open", (slot, path, create):
                self.slots[slot] = self.files.open(self.root / path, create=create)
                return None
            case "replace", (source, target):
                self.files.replace(self.root / source, self.root / target)
                return None
            case _, (str(path),):
                return getattr(self.files, verb)(self.root / path)
            case _, (slot, *rest):
                if slot not in self.slots:
                    return None
                if verb == "write_durably":
                    return self.slots[slot].write(rest[0], rest[1], durable=True)
                return getattr(self.slots[slot], verb.removeprefix("file_"))(*rest)
        raise AssertionError(verb)

    def everything(self, directory: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        for name in self.files.names(directory):
            try:
                found[name] = self.files.read_bytes(directory / name)
            except IsADirectoryError:
                found[name] = self.everything(directory / name)
        return found


@settings(max_examples=1_000 if os.environ.get("ICESTREAM_SOAK") else 100, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_the_same_steps_show_the_same_on_both(steps: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as name:
        local = Script(LocalFiles(), Path(name))
        simulated = Script(SimulatedDisk(), Path("/"))
        for place, step in enumerate(steps):
            if step[0] == "size" and (local.root / step[1]).is_dir():
                continue  # a directory's size means nothing
            assert simulated.run(step) == local.run(step), (place, step)
        assert simulated.everything(Path("/")) == local.everything(local.root)
        for file in local.slots.values():
            file.close()


def _shape(error: OSError) -> tuple[type[OSError], int | None]:
    return type(error), None if isinstance(error, FileNotFoundError) else error.errno


def _make(files: Files, root: Path) -> None:
    files.make_directory(root / "d")
    file = files.open(root / "f", create=True)
    file.write([b"x"], 0)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda files, root: files.names(root / "f"), NotADirectoryError),
        (lambda files, root: files.make_directory(root / "f"), FileExistsError),
        (lambda files, root: files.make_directory(root / "f" / "g"), NotADirectoryError),
        (lambda files, root: files.make_directory(root / "x" / "y"), FileNotFoundError),
        (lambda files, root: files.open(root / "f", create=True), FileExistsError),
        (lambda files, root: files.open(root / "x"), FileNotFoundError),
        (lambda files, root: files.open(root / "d").read(1, 0), IsADirectoryError),
        (lambda files, root: files.read_bytes(root / "d"), IsADirectoryError),
        (lambda files, root: files.remove(root / "d"), IsADirectoryError),
        (lambda files, root: files.remove_tree(root / "f"), NotADirectoryError),
        (lambda files, root: files.replace(root / "d", root / "f"), NotADirectoryError),
        (lambda files, root: files.replace(root / "f", root / "d"), IsADirectoryError),
        (lambda files, root: files.replace(root / "x", root / "f"), FileNotFoundError),
        (lambda files, root: files.replace(root / "d", root / "d" / "e"), OSError),
        (lambda files, root: files.sync_directory(root / "x"), FileNotFoundError),
        (lambda files, root: files.open(root / "f").write([b"x"] * 1025, 0), OSError),
    ],
)
def test_errors_are_those_of_the_local_file_system(
    tmp_path: Path, step: Callable[[Files, Path], object], expected: type[OSError]
) -> None:
    errors: list[OSError] = []
    for files, root in ((LocalFiles(), tmp_path), (SimulatedDisk(), Path("/"))):
        _make(files, root)
        with pytest.raises(expected) as caught:
            step(files, root)
        errors.append(caught.value)
    assert _shape(errors[0]) == _shape(errors[1])


def test_threads_that_write_to_one_file_lose_nothing() -> None:
    disk = SimulatedDisk()
    disk.open(Path("/f"), create=True)
    start = threading.Barrier(4)

    def write(part: int) -> None:
        file = disk.open(Path("/f"))
        start.wait()
        for place in range(100):
            file.write([bytes([part]) * 10], (place * 4 + part) * 10)
            file.datasync()

    threads = [threading.Thread(target=write, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk.read_bytes(Path("/f")) == b"".join(bytes([part]) * 10 for part in range(4)) * 100
    assert disk.unsynced() == ["0:f -> 1"]
