"""The stores that the suite runs on. To add one, add a function to `PLACES`."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from uuid import uuid4

import pytest

from icestream.cloud import ObjectStore
from icestream.cloud.opendal_store import open_object_store
from icestream.config import CloudSettings

Cloud = dict[str, Any]
PREFIXES = (f"/test-{n}" for n in count(1))


def s3(request: pytest.FixtureRequest) -> Cloud:
    return dict(request.getfixturevalue("s3_server").cloud_settings()["cloud"])


def gcs(request: pytest.FixtureRequest) -> Cloud:
    return dict(request.getfixturevalue("gcs_server").cloud_settings()["cloud"])


def azblob(request: pytest.FixtureRequest) -> Cloud:
    return dict(request.getfixturevalue("azurite_server").cloud_settings()["cloud"])


def fs(request: pytest.FixtureRequest) -> Cloud:
    return {"backend": "fs", "root": str(request.getfixturevalue("tmp_path") / "objects")}


def memory(_request: pytest.FixtureRequest) -> Cloud:
    return {"backend": "memory", "root": uuid4().hex}


PLACES: dict[str, Callable[[pytest.FixtureRequest], Cloud]] = {
    place.__name__: place for place in (s3, gcs, azblob, fs, memory)
}


@pytest.fixture(params=PLACES)
def cloud(request: pytest.FixtureRequest) -> Cloud:
    """Settings of a store, with small parts."""
    return {**PLACES[request.param](request), "part_mb": 5, "parallel_parts": 2}


@pytest.fixture
def prefix() -> str:
    """Of this test alone: tests share servers."""
    return next(PREFIXES)


@pytest.fixture
def store(cloud: Cloud, prefix: str) -> Iterator[ObjectStore]:
    store = open_object_store(CloudSettings(**cloud), prefix)
    yield store
    store.close()
