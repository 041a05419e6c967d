import os
import pickle
from pathlib import Path

import pytest
from pyiceberg.io import load_file_io
from tests.unit.table.conftest import OpenTable, append

from icestream.table.files import IMPLEMENTATION, DurableFileIO


def test_the_library_finds_the_files_by_name() -> None:
    made = load_file_io({"py-io-impl": IMPLEMENTATION})
    assert isinstance(made, DurableFileIO)
    assert isinstance(pickle.loads(pickle.dumps(made)), DurableFileIO)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were synced, in order."""
    paths: list[str] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return paths


def test_a_closed_file_is_synced_with_all_its_new_folders(tmp_path: Path, synced: list[str]) -> None:
    folder = tmp_path / "a" / "b"
    with DurableFileIO().new_output(f"file://{folder}/c").create() as stream:
        stream.write(b"bytes")
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(folder / "c"), str(folder)]
    assert (folder / "c").read_bytes() == b"bytes"


def test_a_file_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    output = DurableFileIO().new_output(f"file://{tmp_path}/c")
    output.create().close()
    with pytest.raises(FileExistsError):
        output.create()
    output.create(overwrite=True).close()


def test_everything_that_a_commit_names_is_synced(open_table: OpenTable, synced: list[str]) -> None:
    state = append(open_table(), 0, 10)
    snapshot = state.iceberg.metadata.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(state.iceberg.io)
    entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(state.iceberg.io)]
    named = [
        state.iceberg.metadata_location,
        snapshot.manifest_list,
        *(manifest.manifest_path for manifest in manifests),
        *(entry.data_file.file_path for entry in entries),
    ]
    assert {location.removeprefix("file://") for location in named} <= set(synced)
