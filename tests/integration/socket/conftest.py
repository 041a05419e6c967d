"""A broker with a socket door, and a connection to it that a test drives by hand."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from icestream import Client
from icestream.app import Broker
from icestream.config import Settings
from icestream.protocol.socket import VERSION, MessageKind, MessageSocket, SocketAddress, message

DOORS = {"flight_port": 0, "http_port": -1, "otlp_grpc_port": -1, "otlp_http_port": -1}
PATIENCE_SECONDS = 60.0
MAX_BYTES = 1 << 26


class SocketSite:
    def __init__(self, broker: Broker, client: Client) -> None:
        self.broker = broker
        self.client = client
        self.address: SocketAddress | None = msgspec.convert(client.ping()["socket"], type=SocketAddress | None)
        self.open: list[MessageSocket] = []

    def connect(self) -> MessageSocket:
        """Connect, and say nothing."""
        assert self.address is not None
        peer = MessageSocket(socket.create_connection(("127.0.0.1", self.address.port), PATIENCE_SECONDS))
        self.open.append(peer)
        return peer

    def hello(self, **fields: Any) -> tuple[MessageSocket, Any]:
        """Connect and say hello; return the response."""
        assert self.address is not None
        peer = self.connect()
        peer.send(message(MessageKind.HELLO, {"version": VERSION, "broker": self.address.broker} | fields))
        return peer, receive(peer)


def receive(peer: MessageSocket) -> tuple[MessageKind | None, Any]:
    """Return the next message: its kind and its JSON, or its bytes. No kind means the end."""
    received = peer.receive(MAX_BYTES)
    if received is None:
        return None, None
    kind = MessageKind(received[0])
    is_json = kind not in (MessageKind.FRAMES, MessageKind.BATCH)
    return kind, msgspec.json.decode(received[1:]) if is_json else received


OpenSite = Callable[..., SocketSite]


@pytest.fixture
def open_site(tmp_path: Path) -> Iterator[OpenSite]:
    opened: list[tuple[Broker, SocketSite]] = []

    def start(token: str = "", server: dict[str, Any] | None = None, **sections: Any) -> SocketSite:
        settings = {"data_dir": tmp_path / f"data-{len(opened)}", "server": DOORS | (server or {}), **sections}
        broker = Broker(Settings.model_validate(settings))
        broker.start()
        opened.append((broker, SocketSite(broker, Client(broker.doors["flight"], token=token))))
        return opened[-1][1]

    yield start
    for broker, site in opened:
        for peer in site.open:
            peer.close()
        site.client.close()
        broker.stop()


@pytest.fixture
def site(open_site: OpenSite) -> SocketSite:
    return open_site()
