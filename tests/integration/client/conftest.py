"""Fixtures: a real broker that misbehaves on order, clients of it, and back-offs that cost no time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.client.broker import ScriptedBroker
from tests.unit.client.conftest import eventually, icestream_threads, no_leaked_threads, quick_backoff

from icestream import Client

__all__ = ["TOPIC", "eventually", "icestream_threads", "no_leaked_threads", "quick_backoff"]

TOPIC = "default/t"


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ScriptedBroker]:
    """Start a broker; an indirect parameter gives settings by section."""
    with ScriptedBroker(tmp_path / "data", **getattr(request, "param", {})) as running:
        yield running


@pytest.fixture
def client(broker: ScriptedBroker) -> Iterator[Client]:
    with Client(broker.url) as connected:
        connected.create_topic(TOPIC)
        yield connected
