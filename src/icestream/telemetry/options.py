"""What a caller decides about a conversion: promoted columns and limits."""

from dataclasses import dataclass
from enum import StrEnum

from icestream.model.errors import TooLargeError
from icestream.model.units import MIB


class Source(StrEnum):
    """Where a promoted attribute is looked for."""

    RESOURCE = "resource"
    SCOPE = "scope"
    ITEM = "item"
    """The attributes of the span, log record or data point itself."""


@dataclass(frozen=True)
class Promoted:
    """An attribute that has a column of its own, beside its place in the map."""

    key: str
    column: str
    source: Source = Source.ITEM


SERVICE_NAME = Promoted("service.name", "service_name", Source.RESOURCE)
"""Promoted always: there is no telemetry without the question whose it is."""


@dataclass(frozen=True)
class Options:
    promoted: tuple[Promoted, ...] = ()
    """Further columns, behind all others; a topic that has some may get more."""
    max_request_bytes: int = 16 * MIB
    """A parsed request is held in memory for a moment. The worst one, all empty spans, takes 90 times its bytes."""
    max_rows: int = 1_000_000
    max_batch_bytes: int = 256 * MIB
    """Of the rows made from one request. Each row repeats its resource, so a small request can ask for many bytes."""
    max_depth: int = 24
    """How deep arrays and maps may be nested in one attribute value. The protobuf parser itself gives up near 30."""


DEFAULTS = Options()


def check_limit(what: str, found: int, limit: int) -> None:
    if found > limit:
        raise TooLargeError(
            f"{found} {what}, the limit is {limit}", operation="decode telemetry", remedy="send smaller requests"
        )
