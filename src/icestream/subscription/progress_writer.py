"""Writes progress to the metadata store: all that changed, in few transactions, at most once an interval.

A write compares the record's revision, so that a broker that lost a subscription cannot overwrite what the new one has
written. A store that cannot be reached delays writes, and nothing else. Acknowledgements that are not written yet come
again if the broker is killed.
"""

import threading
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import NamedTuple, Protocol

import structlog

from icestream.metadata import MetadataStore, Put, RevisionIs
from icestream.model.errors import ConflictError, IcestreamError, SubscriptionNotFoundError
from icestream.subscription.progress import SubscriptionRecord

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
        elif self._is_ours(SubscriptionRecord.from_bytes(entry.value, entry.key), subscription):
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
