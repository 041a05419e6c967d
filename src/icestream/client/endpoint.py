"""How a program reaches a broker: address, token and certificates as one object."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from icestream.model.callers import TOKEN_VARIABLE
from icestream.model.errors import InvalidRequestError
from icestream.model.names import DEFAULT_URL

_SCHEMES = {"grpc": "grpc+tcp", "grpc+tcp": "grpc+tcp", "grpc+tls": "grpc+tls"}
_DEFAULT_PORT = 8815
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True, init=False)
class BrokerEndpoint:
    """Address, token and CA certificates of a broker. Make it once and hand it on; every client is made from it.

    `BrokerEndpoint("grpc://host:8815", token=…, tls="ca.pem")`, then `Client(endpoint)`. A client gives its own as
    `client.endpoint`. It can be pickled, so that Spark tasks connect as the driver does: the token and the certificates
    travel with it, because both are read here, in the process that makes it. `repr` and errors never show the token.
    """

    url: str
    """`grpc://host:port` or `grpc+tls://host:port`, as shown to users."""
    token: str | None = field(repr=False)
    """The bearer token; None where the broker uses no tokens."""
    root_certificates: bytes | None = field(repr=False)
    """PEM certificates of the authorities that the client trusts; None trusts those of the system."""

    def __init__(
        self, url: str = DEFAULT_URL, *, token: str | None = None, tls: str | Path | bytes | None = None
    ) -> None:
        """Check and normalise the arguments. `token` defaults to ICESTREAM_TOKEN; `tls` is a PEM file, or its bytes."""
        if tls is not None and not isinstance(tls, str | Path | bytes):
            raise InvalidRequestError(
                f"tls is the file of a certificate authority, or its bytes, not {tls!r}", operation="connect"
            )
        shown, _ = _parse(url)
        object.__setattr__(self, "url", shown)
        object.__setattr__(self, "token", _checked_token(os.environ.get(TOKEN_VARIABLE) if token is None else token))
        object.__setattr__(self, "root_certificates", Path(tls).read_bytes() if isinstance(tls, str | Path) else tls)

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("grpc+tls:")

    @property
    def location(self) -> str:
        """The address as Arrow Flight spells it."""
        return _parse(self.url)[1]


def _checked_token(token: str | None) -> str | None:
    """Return the token without white space around it; None if it is empty. Errors do not show it."""
    text = (token or "").strip()
    if text and not _TOKEN.fullmatch(text):
        raise InvalidRequestError(
            "the token has characters that no token has", operation="connect", remedy=f"check it, or {TOKEN_VARIABLE}"
        )
    return text or None


def _parse(url: str) -> tuple[str, str]:
    """Return the address as shown to users, and as Flight wants it."""
    text = url if "://" in url else f"grpc://{url}"
    try:
        parts = urlsplit(text)
        host, port, scheme = parts.hostname, parts.port or _DEFAULT_PORT, _SCHEMES.get(parts.scheme)
    except ValueError:
        host = scheme = None
        port = 0
    if not host or scheme is None or parts.path.strip("/") or parts.query:
        raise InvalidRequestError(
            f"{url!r} is not a broker's address", operation="connect", remedy="use grpc://host:port or grpc+tls://…"
        )
    if ":" in host:
        host = f"[{host}]"
    return f"{parts.scheme}://{host}:{port}", f"{scheme}://{host}:{port}"
