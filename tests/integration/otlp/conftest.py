import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from icestream.config import Settings
from icestream.model.offsets import StartPosition
from icestream.server.http import HttpDoor
from icestream.server.metrics import BrokerMetrics
from icestream.server.otlp import GrpcDoor, Receiver, otlp_app
from icestream.server.otlp.grpc_door import METHODS
from icestream.storage import IcebergStorage
from icestream.telemetry import Signal

PROTOBUF = "application/x-protobuf"
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Outcome:
    """An answer of either door. `code` is gRPC's number or HTTP's status, `body` the response or the status message."""

    code: int
    body: bytes = b""
    status: Status = field(default_factory=Status)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.code in (0, 200)

    @property
    def retry_seconds(self) -> float | None:
        """Of the status' details; None where the sender is not to try again."""
        for detail in self.status.details:
            info = RetryInfo()
            assert detail.Unpack(info)
            return float(info.retry_delay.ToMilliseconds() / 1000)
        return None


@dataclass
class Doors:
    """Both doors on a real storage."""

    storage: IcebergStorage
    metrics: BrokerMetrics
    http: httpx.Client
    grpc_address: str
    channel: grpc.Channel

    def send(self, door: str, signal: Signal, body: bytes, **headers: str) -> Outcome:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.post(signal, body, named) if door == "http" else self.call(signal, body, named)

    def post(self, signal: Signal, body: bytes, headers: Mapping[str, str]) -> Outcome:
        answer = self.http.post(f"/v1/{signal}", content=body, headers={"content-type": PROTOBUF, **headers})
        status = Status()
        if answer.status_code != 200 and answer.headers["content-type"] == PROTOBUF:
            status = Status.FromString(answer.content)
            assert status.message
        return Outcome(answer.status_code, answer.content, status, answer.headers)

    def call(
        self,
        signal: Signal,
        body: bytes,
        headers: Mapping[str, str],
        compression: grpc.Compression = grpc.Compression.NoCompression,
    ) -> Outcome:
        method: Any = self.channel.unary_unary(f"/{METHODS[signal]}/Export")
        try:
            answer = method(body, metadata=tuple(headers.items()), compression=compression, timeout=PATIENCE_SECONDS)
        except grpc.RpcError as error:
            trailers: Any = error.trailing_metadata() or ()
            details = dict(trailers).get("grpc-status-details-bin", b"")
            return Outcome(error.code().value[0], b"", Status.FromString(details))
        return Outcome(0, answer)

    def rows(self, topic: str) -> pa.Table:
        """Everything that a topic's log has."""
        found = self.storage.topics.get(topic)
        reader = found.reader(StartPosition.earliest())
        batches: list[pa.RecordBatch] = []
        while read := reader.read():
            batches += read
        reader.close()
        return pa.Table.from_batches(batches, found.stream_schema)

    def topics(self) -> list[str]:
        return [str(topic.name) for topic in self.storage.topics.find()]


OpenDoors = Callable[..., Doors]


@contextlib.contextmanager
def opened(path: Path, **settings: Any) -> Iterator[Doors]:
    with contextlib.ExitStack() as stack:
        storage = stack.enter_context(IcebergStorage(Settings(data_dir=path, **settings)))
        metrics = BrokerMetrics(storage)
        receiver = Receiver(storage, metrics)
        http = HttpDoor(otlp_app(receiver, metrics), "127.0.0.1", 0)
        http.start()
        stack.callback(http.stop, PATIENCE_SECONDS)
        door = GrpcDoor(receiver, metrics, "127.0.0.1", 0)
        door.start()
        stack.callback(door.stop, PATIENCE_SECONDS)
        client = stack.enter_context(httpx.Client(base_url=http.address, timeout=PATIENCE_SECONDS, trust_env=False))
        target = door.address.removeprefix("http://")
        channel = grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)])
        stack.callback(channel.close)
        yield Doors(storage, metrics, client, door.address, channel)


@pytest.fixture
def open_doors(tmp_path: Path) -> Iterator[OpenDoors]:
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(opened(tmp_path, **settings))


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """Shared by the tests of a module, with the default settings."""
    with opened(tmp_path_factory.mktemp("otlp")) as running:
        yield running
