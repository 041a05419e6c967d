from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.flight.plain import PlainClient

from icestream.config import Settings
from icestream.server.flight.door import FlightDoor
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage

VERSION = "1.2.3"


class Running:
    """A real door on a real storage, and a plain client of it."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.storage = IcebergStorage(Settings(data_dir=data_dir, **settings))
        metrics = BrokerMetrics(self.storage)
        self.storage.on_commit = metrics.committed
        self.storage.open()
        self.door = FlightDoor(self.storage, metrics, host="127.0.0.1", port=0, version=VERSION)
        self.address = f"grpc+tcp://127.0.0.1:{self.door.port}"
        self._clients: list[PlainClient] = []
        self.client = self.connect()

    def connect(self) -> PlainClient:
        self._clients.append(PlainClient(self.address))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.door.end_streams()
        self.door.shutdown()
        self.storage.close()


OpenDoor = Callable[..., Running]


@pytest.fixture
def open_door(tmp_path: Path) -> Iterator[OpenDoor]:
    """Opens a door with settings by section, such as `server={"max_connections": 1}`."""
    opened: list[Running] = []

    def start(**settings: Any) -> Running:
        opened.append(Running(tmp_path / f"data-{len(opened)}", **settings))
        return opened[-1]

    yield start
    for running in opened:
        running.close()


@pytest.fixture
def running(open_door: OpenDoor) -> Running:
    return open_door()


@pytest.fixture
def client(running: Running) -> PlainClient:
    return running.client
