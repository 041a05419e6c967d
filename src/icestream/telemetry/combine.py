"""Joins requests that wait at the same time: they become rows, and a frame of the log, together.

One thread at a time converts. The first request for a topic waits for its turn; those that come meanwhile sleep, and it
takes them along. Joined serialized requests are a valid request if each is whole, and a large request costs less an
item than many small ones. So a request's thread is woken once: when it is stored, or when it is the first of those that
did not fit.

A bad request does not affect those it is joined with: one that is not whole is converted alone; if joined requests are
refused, or fail in an unforeseen way before anything is stored, each is tried alone.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from icestream.model.errors import InvalidRequestError
from icestream.telemetry.schemas import Signal
from icestream.telemetry.wire import is_whole


class TelemetryTarget(NamedTuple):
    tenant: str
    dataset: str | None
    signal: Signal


class _Waiting:
    """A request between its arrival and its response."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.is_finished = False
        self.error: Exception | None = None
        self.rows = 0
        self.nbytes = 0
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def finish(self, error: Exception | None) -> None:
        self.error = error
        self.is_finished = True
        self.wake()

    def wake(self) -> None:
        self._asleep.release()

    def sleep(self) -> None:
        self._asleep.acquire()


_Made = tuple[list[_Waiting], pa.RecordBatch | Exception]


class Combiner:
    def __init__(
        self,
        convert: Callable[[Signal, bytes], pa.RecordBatch],
        publish: Callable[[TelemetryTarget, pa.RecordBatch], None],
        max_bytes: int,
    ) -> None:
        self._convert = convert
        self._publish = publish
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._waiting: dict[TelemetryTarget, list[_Waiting]] = {}
        self.converting = threading.Lock()
        """Held while requests are converted."""

    def store(self, target: TelemetryTarget, request: bytes) -> tuple[int, int]:
        """Return when the request's rows are durable: the number of rows, and of bytes in Arrow.

        Of rows that became durable together each request has a share by its size: the sum over all is exact.
        """
        mine = _Waiting(request)
        with self._lock:
            waiting = self._waiting.setdefault(target, [])
            waiting.append(mine)
            is_first = len(waiting) == 1
        if not is_first:
            mine.sleep()
        if not mine.is_finished:
            self._store_waiting(target)
        if mine.error is not None:
            raise mine.error
        return mine.rows, mine.nbytes

    def _store_waiting(self, target: TelemetryTarget) -> None:
        """Store the first waiting request, and those that it takes along. All of them are finished at return."""
        group: list[_Waiting] = []
        try:
            with self.converting:
                group = self._take(target)
                made = self._make(target.signal, group)
            for members, batch in made:
                self._finish(target, members, batch)
        except Exception as error:
            for member in group:
                if not member.is_finished:
                    member.finish(error)
            raise

    def _take(self, target: TelemetryTarget) -> list[_Waiting]:
        """Take the first request for a topic and as many others as fit. Wake the first of the rest."""
        with self._lock:
            group: list[_Waiting] = []
            rest: list[_Waiting] = []
            size = 0
            for member in self._waiting.pop(target):
                fits = not group or size + len(member.request) <= self._max_bytes
                (group if fits else rest).append(member)
                size += len(member.request) if fits else 0
            if rest:
                self._waiting[target] = rest
                rest[0].wake()
            return group

    def _make(self, signal: Signal, group: list[_Waiting]) -> list[_Made]:
        """Convert requests, as many as possible together."""
        if len(group) == 1:
            return [(group, self._converted(signal, group))]
        whole: list[_Waiting] = []
        alone: list[_Waiting] = []
        for member in group:
            (whole if is_whole(member.request) else alone).append(member)
        made: list[_Made] = []
        batch = self._converted(signal, whole) if whole else None
        if isinstance(batch, pa.RecordBatch):
            made.append((whole, batch))
        elif batch is not None:
            alone = group
        return made + [([member], self._converted(signal, [member])) for member in alone]

    def _converted(self, signal: Signal, members: list[_Waiting]) -> pa.RecordBatch | Exception:
        try:
            return self._convert(signal, b"".join(member.request for member in members))
        except Exception as error:  # noqa: BLE001 - raised in the request's thread
            return error

    def _finish(self, target: TelemetryTarget, members: list[_Waiting], batch: pa.RecordBatch | Exception) -> None:
        """Publish rows, and finish their requests."""
        error: Exception | None = None
        if isinstance(batch, Exception):
            error = batch
        elif batch.num_rows:
            try:
                self._publish(target, batch)
            except InvalidRequestError as refusal:
                if len(members) > 1:
                    self._finish_each(target, members)
                    return
                error = refusal
            except Exception as refusal:  # noqa: BLE001 - raised in the thread of each request
                error = refusal
        if isinstance(batch, pa.RecordBatch) and error is None:
            _share_out(batch, members)
        for member in members:
            member.finish(error)

    def _finish_each(self, target: TelemetryTarget, members: list[_Waiting]) -> None:
        """Publish rows that were refused together one request at a time: one of them may be the cause."""
        for member in members:
            with self.converting:
                batch = self._converted(target.signal, [member])
            self._finish(target, [member], batch)


def _share_out(batch: pa.RecordBatch, members: list[_Waiting]) -> None:
    """Set each request's share of the rows, by size. Later ones get what rounding leaves."""
    rows, nbytes, size = batch.num_rows, batch.nbytes, sum(len(member.request) for member in members)
    for member in members:
        own = len(member.request)
        if own:
            member.rows, member.nbytes = rows * own // size, nbytes * own // size
        rows, nbytes, size = rows - member.rows, nbytes - member.nbytes, size - own
