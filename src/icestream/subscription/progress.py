"""How far a subscription is, its record in the metadata store, and the thread that writes the records.

All below the floor is acknowledged, and above it the ranges. In JSON the ranges are a list of gaps and lengths from the
floor on or, if there are many, a compressed bit map. Both are exact.

`ProgressWriter` writes all that changed, in few transactions, at most once an interval. A write compares the record's
revision, so that a broker that lost a subscription cannot overwrite what the new one has written. A store that cannot
be reached delays writes, and nothing else. Acknowledgements that are not written yet come again if the broker is
killed.
"""

import base64
import json
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import structlog

from icestream.metadata import MetadataStore, Put, RevisionIs, keys
from icestream.model.errors import (
    ConflictError,
    DamagedError,
    IcestreamError,
    InvalidRequestError,
    SubscriptionNotFoundError,
)
from icestream.model.names import TopicName
from icestream.subscription.options import SubscriptionOptions

# Sets of offsets: sorted, disjoint ranges `[first, end)` in an array of two columns

Offsets = npt.NDArray[np.int64]
Ranges = npt.NDArray[np.int64]

MAX_OFFSET = int(np.iinfo(np.int64).max)


def no_ranges() -> Ranges:
    return np.empty((0, 2), np.int64)


def as_ranges(given: Iterable[Sequence[int]], *, operation: str) -> Ranges:
    """Return ranges from pairs in any order, which may overlap."""
    try:
        pairs = np.array(list(given), np.int64).reshape(-1, 2)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(
            "these are not ranges of offsets", operation=operation, remedy="give pairs of first offset and end"
        ) from error
    return merged(pairs[pairs[:, 0] < pairs[:, 1]])


def merged(pairs: Ranges) -> Ranges:
    if len(pairs) < 2:  # noqa: PLR2004
        return pairs
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    ends = np.maximum.accumulate(pairs[:, 1])
    begins = np.concatenate(([True], pairs[1:, 0] > ends[:-1]))
    last = np.concatenate((np.flatnonzero(begins)[1:] - 1, [len(pairs) - 1]))
    return np.column_stack((pairs[begins, 0], ends[last]))


def clipped(ranges: Ranges, first: int, end: int) -> Ranges:
    """Return the parts of the ranges within `[first, end)`."""
    low = int(np.searchsorted(ranges[:, 1], first, side="right"))
    high = int(np.searchsorted(ranges[:, 0], end, side="left"))
    return np.clip(ranges[low:high], first, end)


def expanded(ranges: Ranges) -> Offsets:
    """Return every offset in the ranges."""
    if len(ranges) == 1:
        return np.arange(ranges[0, 0], ranges[0, 1])
    lengths = ranges[:, 1] - ranges[:, 0]
    before = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    return np.repeat(ranges[:, 0] - before, lengths) + np.arange(int(lengths.sum()))


def ranges_where(mask: npt.NDArray[np.bool_], first: int) -> Ranges:
    """Return the runs of True in a mask that begins at offset `first`."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.view(np.int8), [0])).astype(np.int8)))
    return edges.reshape(-1, 2).astype(np.int64) + first


def total(ranges: Ranges) -> int:
    """Return how many offsets are in the ranges."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())


# Progress and its record

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


# Writing the records

_log = structlog.get_logger(__name__)
_MAX_OPERATIONS = 100
_MAX_BYTES = 900_000
"""Both within the limits of a transaction."""
_MAX_PAUSE_SECONDS = 10.0


class PersistedSubscription(Protocol):
    """What the writer needs of a subscription."""

    revision: int
    """Of the record in the metadata store, as this process read or wrote it last."""

    @property
    def key(self) -> str: ...

    @property
    def place(self) -> str:
        """For errors."""

    @property
    def created_us(self) -> int: ...

    @property
    def unwritten(self) -> bool: ...

    def snapshot(self) -> tuple[int, bytes]:
        """Return the version of the record, and the record."""

    def written(self, version: int, revision: int, /) -> None: ...

    def end(self, reason: IcestreamError, /) -> None: ...


class _Write(NamedTuple):
    subscription: PersistedSubscription
    version: int
    value: bytes


class ProgressWriter:
    def __init__(self, metadata: MetadataStore, writer: str, *, interval_ms: int) -> None:
        self.metadata = metadata
        self.writer = writer
        """The name of this process in the records."""
        self._interval_seconds = interval_ms / 1000
        self._changed = threading.Condition()
        self._dirty: set[PersistedSubscription] = set()
        self._urgent = False
        self._stopping = False
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def expect(self, subscription: PersistedSubscription, *, urgent: bool = False) -> None:
        """Note that a subscription has changed. An urgent change does not wait for the interval."""
        with self._changed:
            if subscription not in self._dirty or (urgent and not self._urgent):
                self._dirty.add(subscription)
                self._urgent |= urgent
                self._changed.notify()

    def forget(self, subscription: PersistedSubscription) -> None:
        with self._changed:
            self._dirty.discard(subscription)

    def flush(self, only: Iterable[PersistedSubscription] | None = None) -> None:
        """Write all that changed, or raise why it cannot be written."""
        with self._writing:
            with self._changed:
                dirty = self._dirty if only is None else self._dirty.intersection(only)
                self._dirty = self._dirty - dirty
            try:
                for writes in _grouped(dirty):
                    self._write(writes)
            except BaseException:
                with self._changed:
                    self._dirty |= {subscription for subscription in dirty if subscription.unwritten}
                raise

    def stop(self) -> None:
        """Write the rest and stop. What cannot be written comes again after the restart."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        try:
            self.flush()
        except IcestreamError as error:
            _log.warning("subscription_progress_lost", error=str(error))

    def _run(self) -> None:
        failures = 0
        while self._wait(min(self._interval_seconds * 2**failures, max(self._interval_seconds, _MAX_PAUSE_SECONDS))):
            try:
                self.flush()
                failures = 0
            except Exception as error:  # noqa: BLE001 - the thread writes for all: nothing may end it
                failures = min(failures + 1, 16)
                if failures == 1:
                    _log.warning("subscription_progress_write_failed", error=repr(error))

    def _wait(self, seconds: float) -> bool:
        """Wait until something has to be written now; return False at the end."""
        with self._changed:
            earliest = monotonic() + seconds
            while not self._stopping:
                left = earliest - monotonic()
                if self._dirty and (left <= 0 or self._urgent):
                    self._urgent = False
                    return True
                self._changed.wait(left if self._dirty else None)
            return False

    def _write(self, writes: list[_Write]) -> None:
        result = self.metadata.transaction(
            [RevisionIs(write.subscription.key, write.subscription.revision) for write in writes],
            [Put(write.subscription.key, write.value) for write in writes],
        )
        if result.succeeded:
            for write in writes:
                write.subscription.written(write.version, result.revision)
        elif len(writes) > 1:
            for write in writes:
                self._write([write])
        else:
            self._resolve(writes[0])

    def _resolve(self, write: _Write) -> None:
        """Resolve a changed record: this process wrote it and the response was lost, or another broker did."""
        subscription = write.subscription
        entry = self.metadata.get(subscription.key)
        if entry is None:
            subscription.end(SubscriptionNotFoundError("the subscription was deleted", place=subscription.place))
            self.forget(subscription)
            return
        try:
            record = SubscriptionRecord.from_bytes(entry.value, entry.key)
        except DamagedError as error:  # of this subscription only: the others are written nevertheless
            _log.error("subscription_record_unreadable", key=entry.key, error=str(error))
            subscription.end(error)
            self.forget(subscription)
            return
        if self._is_ours(record, subscription):
            subscription.revision = entry.mod_revision
            self._write([write])
        else:
            _log.warning("subscription_taken_over", subscription=subscription.place)
            subscription.end(
                ConflictError(
                    "another broker serves the subscription now",
                    operation="progress",
                    place=subscription.place,
                    remedy="connect again",
                )
            )
            self.forget(subscription)

    def _is_ours(self, record: SubscriptionRecord, subscription: PersistedSubscription) -> bool:
        """Return whether this process wrote the record, and for this subscription, not an earlier one of the name."""
        return record.writer == self.writer and record.created_us == subscription.created_us


def _grouped(subscriptions: Iterable[PersistedSubscription]) -> Iterator[list[_Write]]:
    group: list[_Write] = []
    nbytes = 0
    for subscription in subscriptions:
        write = _Write(subscription, *subscription.snapshot())
        size = len(write.value) + 2 * len(subscription.key)
        if group and (len(group) == _MAX_OPERATIONS or nbytes + size > _MAX_BYTES):
            yield group
            group, nbytes = [], 0
        group.append(write)
        nbytes += size
    if group:
        yield group
