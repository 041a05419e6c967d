"""What several tests of the cloud start from."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.cloud.brokers import Site
from tests.integration.cloud.stage import Stage


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A broker process that uploads to a directory."""
    made = Site(tmp_path)
    made.broker.start()
    yield made
    made.close()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A storage that uploads to a store in memory."""
    return Stage(tmp_path, monkeypatch)
