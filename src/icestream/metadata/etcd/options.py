"""How to reach an etcd cluster. This module does not import gRPC, which a broker without etcd does not need."""

from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class EtcdOptions:
    endpoints: tuple[str, ...]
    """`host:port`, with `https://` before it for TLS. Without a scheme, `ca_file` or `cert_file` mean TLS."""
    ca_file: Path | None = None
    """CA certificates for the servers' certificates; without it, those that gRPC trusts."""
    cert_file: Path | None = None
    key_file: Path | None = None
    user: str | None = None
    password: str = field(default="", repr=False)
    prefix: str = ""
    """Prefix of every key, so that several installations can share a cluster."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """How long a call is tried before it raises."""

    @property
    def place(self) -> str:
        return ",".join(self.endpoints)
