import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from icestream.config import Settings
from icestream.server.http import HttpDoor, http_app
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage

PATIENCE_SECONDS = 30.0


@dataclass
class Running:
    """A real door on a real storage."""

    storage: IcebergStorage
    metrics: BrokerMetrics
    door: HttpDoor
    client: httpx.Client
    ready: bool = True

    def publish(self, topic: str, *payloads: str, **fields: Any) -> dict[str, Any]:
        body = {"messages": [{"payload": payload} for payload in payloads], **fields}
        answer = self.client.post(f"/api/v1/topics/{topic}/messages", json=body)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def read(self, topic: str, **query: Any) -> dict[str, Any]:
        answer = self.client.get(f"/api/v1/topics/{topic}/messages", params=query)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def post_json(self, path: str, text: str | bytes) -> httpx.Response:
        return self.client.post(path, content=text, headers={"Content-Type": "application/json"})


OpenDoor = Callable[..., Running]


def error_of(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error of an answer, which must have the shape that every error has."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    (error,) = answer.json().values()
    assert set(error) == {"code", "message", "operation", "place", "remedy", "retryable", "details"}
    assert error["code"] == code
    result: dict[str, Any] = error
    return result


@contextlib.contextmanager
def running_door(path: Path, **settings: Any) -> Iterator[Running]:
    storage = IcebergStorage(Settings(data_dir=path, **settings))
    metrics = BrokerMetrics(storage)
    storage.on_commit = metrics.committed

    def ready() -> bool:
        return running.ready

    app = http_app(storage, metrics, version="1.2.3", ready=ready, doors=lambda: {"http": door.address})
    door = HttpDoor(app, "127.0.0.1", 0)
    with storage:
        door.start()
        with httpx.Client(base_url=door.address, timeout=PATIENCE_SECONDS) as client:
            running = Running(storage, metrics, door, client)
            yield running
        door.stop(5)


@pytest.fixture
def open_door(tmp_path: Path) -> Iterator[OpenDoor]:
    with contextlib.ExitStack() as doors:
        yield lambda **settings: doors.enter_context(running_door(tmp_path / "data", **settings))


@pytest.fixture
def http(open_door: OpenDoor) -> Running:
    return open_door()


@pytest.fixture(scope="module")
def lasting_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One door for many refusals, which leave nothing behind."""
    with running_door(tmp_path_factory.mktemp("lasting")) as running:
        yield running
