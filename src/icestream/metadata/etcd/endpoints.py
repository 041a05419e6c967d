"""Connections to the members of a cluster: made when first needed, the one that answers preferred."""

import threading
from pathlib import Path
from typing import Any

import grpc

from icestream.metadata.etcd.calls import Calls
from icestream.metadata.etcd.options import EtcdOptions
from icestream.metadata.limits import MAX_PAGE_BYTES
from icestream.model.errors import InvalidRequestError

MAX_REPLY_BYTES = 2 * MAX_PAGE_BYTES

_CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    # A member that vanished without a word is noticed; etcd refuses pings that come more often than every 5 seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A member that comes back is found soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A metadata store stands beside its users, not behind the proxy that leads out.
    ("grpc.enable_http_proxy", 0),
)


class Endpoint:
    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.calls = Calls(channel)


class Endpoints:
    """Thread-safe."""

    def __init__(self, options: EtcdOptions) -> None:
        if not options.endpoints:
            raise InvalidRequestError("there is no endpoint", operation="open etcd", remedy="name at least one")
        credentials = _credentials(options)
        is_secure = options.ca_file is not None or options.cert_file is not None
        self._lock = threading.Lock()
        self._preferred = 0
        self._endpoints = [Endpoint(_channel(text, credentials, is_secure=is_secure)) for text in options.endpoints]

    def __len__(self) -> int:
        return len(self._endpoints)

    def preferred(self) -> Endpoint:
        with self._lock:
            return self._endpoints[self._preferred]

    def failed(self, endpoint: Endpoint) -> None:
        """Prefer the next one, unless somebody else has found out already."""
        with self._lock:
            if self._endpoints[self._preferred] is endpoint:
                self._preferred = (self._preferred + 1) % len(self._endpoints)

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.channel.close()


def _channel(text: str, credentials: grpc.ChannelCredentials, *, is_secure: bool) -> grpc.Channel:
    scheme, _, address = text.rpartition("://")
    address = address.rstrip("/")
    if scheme == "https" or (not scheme and is_secure):
        return grpc.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)
    return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)


def _credentials(options: EtcdOptions) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(_read(options.ca_file), _read(options.key_file), _read(options.cert_file))


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            f"the file cannot be read: {error.strerror}", operation="open etcd", place=str(path)
        ) from error
