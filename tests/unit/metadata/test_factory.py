from pathlib import Path

import pytest

from icestream.metadata import EtcdOptions, MemoryMetadataStore, SqliteMetadataStore, open_metadata_store
from icestream.model.errors import InvalidRequestError


def test_in_memory_is_a_memory_store() -> None:
    with open_metadata_store(in_memory=True) as store:
        assert isinstance(store, MemoryMetadataStore)


def test_a_path_is_a_sqlite_store_with_its_folders_made(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "metadata.db"
    with open_metadata_store(sqlite_path=path) as store:
        assert isinstance(store, SqliteMetadataStore)
        store.put("/a", b"1")
    assert path.is_file()


def test_several_or_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError):
        open_metadata_store()
    with pytest.raises(InvalidRequestError):
        open_metadata_store(in_memory=True, sqlite_path=tmp_path / "metadata.db")
    with pytest.raises(InvalidRequestError):
        open_metadata_store(in_memory=True, etcd=EtcdOptions(("127.0.0.1:2379",)))
