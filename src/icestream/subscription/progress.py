"""How far a subscription is, and its record in the metadata store.

All below the floor is acknowledged, and above it the ranges. In JSON the ranges are a list of gaps and lengths from the
floor on or, if there are many, a compressed bit map. Both are exact.
"""

import base64
import json
import zlib
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from icestream.metadata import keys
from icestream.model.errors import DamagedError, IcestreamError
from icestream.model.names import TopicName
from icestream.subscription.offset_ranges import MAX_OFFSET, Ranges, clipped, expanded, merged, no_ranges, ranges_where
from icestream.subscription.options import SubscriptionOptions

MAX_LISTED_RANGES = 1_000
MAX_PENDING = 1_000
PENDING_COLUMNS = 5
_MAX_BITMAP = 8_000_000
Pending = npt.NDArray[np.int64]


def no_pending() -> Pending:
    return np.empty((0, PENDING_COLUMNS), np.int64)


@dataclass(frozen=True)
class Progress:
    floor: int
    acknowledged: Ranges = field(default_factory=no_ranges)
    """Above the floor."""
    pending: Pending = field(default_factory=no_pending)
    """Messages that come again: first, end, redeliveries, failures, and when they are due (ms, 0: at once).

    `MAX_PENDING` ranges at most; messages beyond count as never delivered.
    """

    def acknowledge(self, ranges: Ranges, max_ahead: int) -> "Progress":
        """Return the progress with these ranges acknowledged, up to `max_ahead` messages above the floor."""
        known = merged(np.concatenate((self.acknowledged, clipped(ranges, self.floor, MAX_OFFSET))))
        floor = self.floor
        if len(known) and known[0, 0] <= floor:
            floor = int(known[0, 1])
        known = clipped(known, floor, floor + max_ahead)
        return Progress(floor, known, self.pending[self.pending[:, 1] > floor])

    def to_json(self) -> dict[str, Any]:
        ranges = self.acknowledged
        fields: dict[str, Any] = {"floor": self.floor}
        if len(ranges) > MAX_LISTED_RANGES:
            ranges = clipped(ranges, self.floor, self.floor + _MAX_BITMAP)
            bits = np.zeros(int(ranges[-1, 1]) - self.floor, np.bool_)
            bits[expanded(ranges) - self.floor] = True
            fields["bitmap"] = base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 1)).decode()
        elif len(ranges):
            edges = np.concatenate(([self.floor], ranges.ravel()))
            fields["ranges"] = np.diff(edges).tolist()
        if len(self.pending):
            fields["pending"] = self.pending[:MAX_PENDING].tolist()
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        floor = int(fields["floor"])
        acknowledged = no_ranges()
        if "bitmap" in fields:
            packed = zlib.decompress(base64.b64decode(fields["bitmap"]))
            acknowledged = ranges_where(np.unpackbits(np.frombuffer(packed, np.uint8)).astype(np.bool_), floor)
        elif "ranges" in fields:
            acknowledged = (np.cumsum(np.array(fields["ranges"], np.int64)) + floor).reshape(-1, 2)
        pending = np.array(fields.get("pending", []), np.int64).reshape(-1, PENDING_COLUMNS)
        return cls(floor, acknowledged, pending)


_VERSION = 1


@dataclass(frozen=True)
class SubscriptionRecord:
    """A subscription in the metadata store: JSON under `keys.subscription_progress`."""

    topic: TopicName
    name: str
    stream_id: str
    """A topic that was deleted and created again is another stream."""
    options: SubscriptionOptions
    progress: Progress
    created_us: int
    redeliveries: int = 0
    dead_letters: int = 0
    writer: str = ""
    """The process that wrote it last: tells this process' own write, whose response was lost, from another's."""

    @property
    def key(self) -> str:
        return keys.subscription_progress(self.name, self.topic)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "version": _VERSION,
                "topic": str(self.topic),
                "subscription": self.name,
                "stream_id": self.stream_id,
                "options": self.options.to_json(),
                "progress": self.progress.to_json(),
                "created_us": self.created_us,
                "redeliveries": self.redeliveries,
                "dead_letters": self.dead_letters,
                "writer": self.writer,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_bytes(cls, value: bytes, key: str) -> Self:
        try:
            fields = _known(json.loads(value))
            return cls(
                topic=TopicName.parse(fields["topic"]),
                name=fields["subscription"],
                stream_id=fields["stream_id"],
                options=SubscriptionOptions.from_json(fields["options"]),
                progress=Progress.from_json(fields["progress"]),
                created_us=int(fields["created_us"]),
                redeliveries=int(fields["redeliveries"]),
                dead_letters=int(fields["dead_letters"]),
                writer=str(fields["writer"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, IcestreamError) as error:
            raise DamagedError(
                f"the record of a subscription cannot be read: {error}",
                operation="load subscription",
                place=key,
                remedy="read it with the version of icestream that wrote it, or delete the key to start anew",
            ) from error


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    if fields["version"] != _VERSION:
        raise ValueError(f"version {fields['version']!r} is not known")
    return fields
