"""Which web pages may open streams.

A browser lets any page of any site open a WebSocket or an event stream to any address that it can reach, a broker on
the same machine included, and those change what a subscription has acknowledged. So a page's origin must be the door
itself or one that `server.allowed_origins` names. Programs that are no browsers send no origin and are not affected.
(Everything else that changes something needs a Content-Type or method that browsers ask leave for, and do not get.)
"""

from collections.abc import Collection

from starlette.requests import HTTPConnection

from icestream.model.errors import IcestreamError
from icestream.server.http.errors import shorten

_OWN_SITE = frozenset({"same-origin", "none"})


class OriginRefusedError(IcestreamError):
    """A web page of another origin than those that are allowed."""

    code = "origin_refused"


def check_origin(connection: HTTPConnection, allowed: Collection[str], *, operation: str) -> dict[str, str]:
    """Raise unless the caller may open streams; headers that let a page of an allowed origin read the answer."""
    origin = connection.headers.get("origin")
    if origin is None:
        # Requests that a page sends without asking for the answer have no origin, but browsers say that much of them.
        if connection.headers.get("sec-fetch-site", "none") in _OWN_SITE:
            return {}
        origin = "another site"
    elif origin.partition("://")[2] == connection.headers.get("host"):
        return {}
    elif origin in allowed:
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
    raise OriginRefusedError(
        f"pages of {shorten(origin)!r} may not open streams here",
        operation=operation,
        remedy="serve the page from an origin that server.allowed_origins names",
    )
