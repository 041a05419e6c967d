"""What several tests of storages need."""

from pathlib import Path

import pytest
from tests.cloud_objects import FragileStore
from tests.unit.storage.disaster import Disaster


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> FragileStore:
    """The object store of every storage that the test opens."""
    store = FragileStore()
    monkeypatch.setattr("icestream.cloud.opendal_store.open_object_store", lambda *_: store)
    return store


@pytest.fixture
def disaster(tmp_path: Path, objects: FragileStore) -> Disaster:
    return Disaster(tmp_path, objects)
