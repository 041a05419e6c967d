"""Objects as files: what a crash leaves behind, and the order of syncs."""

import os
from pathlib import Path

import pytest

from icestream.cloud import directory
from icestream.cloud.directory import UNFINISHED, FileWriter
from icestream.cloud.opendal_store import open_object_store
from icestream.config import CloudSettings
from icestream.model.errors import InvalidRequestError, ObjectExistsError


def unfinished(root: Path) -> list[str]:
    return [path.name for path in (root / UNFINISHED).glob("*")]


def settings(root: Path) -> CloudSettings:
    return CloudSettings(backend="fs", root=str(root))


def test_bytes_and_names_are_synced_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, link = os.fsync, Path.hardlink_to

    def fsync(descriptor: int) -> None:
        done.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().relative_to(tmp_path.parent)}")
        sync(descriptor)

    def hardlink_to(path: Path, target: Path) -> None:
        done.append(f"link {path.relative_to(tmp_path.parent)}")
        link(path, target)

    writer = FileWriter(tmp_path, "a/b/key")
    writer.write(b"1")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "hardlink_to", hardlink_to)
    temporary = unfinished(tmp_path)[0]
    writer.finish()
    root = tmp_path.name
    assert done == [
        f"sync {root}/{UNFINISHED}/{temporary}",
        f"sync {root}",
        f"sync {root}/a",
        f"link {root}/a/b/key",
        f"sync {root}/a/b",
    ]


def test_no_end_of_a_writer_leaves_its_temporary_file(tmp_path: Path) -> None:
    FileWriter(tmp_path, "given-up").abort()
    FileWriter(tmp_path, "finished").finish()
    with pytest.raises(ObjectExistsError):
        FileWriter(tmp_path, "finished").finish()
    assert unfinished(tmp_path) == []


def test_what_a_dead_writer_left_is_removed_when_the_store_opens(tmp_path: Path) -> None:
    living = FileWriter(tmp_path, "living")
    left = tmp_path / UNFINISHED / "left-by-a-crash"
    left.write_bytes(b"half")
    store = open_object_store(settings(tmp_path), "")
    assert not left.exists()
    assert list(store.list("")) == []
    living.write(b"whole")
    living.finish()
    assert store.read("living", 0, 5) == b"whole"


def test_unfinished_files_cannot_be_reached_by_a_key(tmp_path: Path) -> None:
    store = open_object_store(settings(tmp_path), "")
    with pytest.raises(InvalidRequestError):
        store.put(f"{UNFINISHED}/key", b"")


def test_an_object_in_the_way_of_a_directory_is_named(tmp_path: Path) -> None:
    store = open_object_store(settings(tmp_path), "")
    store.put("a", b"1")
    with pytest.raises(InvalidRequestError, match="an object has the name of a folder of this object"):
        store.put("a/b", b"2")
    assert store.read("a", 0, 1) == b"1"


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(directory, "make_durable", refuse)
    with pytest.raises(InvalidRequestError, match="Permission denied"):
        open_object_store(settings(tmp_path), "").put("key", b"1")
