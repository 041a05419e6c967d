"""Requests that wait at the same time become rows, and a frame of the log, together.

Conversion is done by one thread at a time. The first request for a topic waits for its turn; those that come meanwhile
sleep, and it takes them along: serialized requests that are joined are a valid request, and a large one costs less an
item than many small ones. So a request's thread is woken once: when it is stored, or when it is the first of those that
did not fit. When a joined request is refused each is tried alone, so that nobody is refused for another's mistake.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.telemetry.signals import Signal


class Target(NamedTuple):
    tenant: str
    dataset: str | None
    signal: Signal


class _Waiting:
    """A request between its arrival and its answer."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.is_answered = False
        self.error: Exception | None = None
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def answer(self, error: Exception | None) -> None:
        self.error = error
        self.is_answered = True
        self.wake()

    def wake(self) -> None:
        self._asleep.release()

    def sleep(self) -> None:
        self._asleep.acquire()


_Made = tuple[list[_Waiting], pa.RecordBatch | InvalidRequestError]


class Combiner:
    def __init__(
        self,
        convert: Callable[[Signal, bytes], pa.RecordBatch],
        publish: Callable[[Target, pa.RecordBatch], None],
        max_bytes: int,
    ) -> None:
        self._convert = convert
        self._publish = publish
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._waiting: dict[Target, list[_Waiting]] = {}
        self.converting = threading.Lock()
        """Held while requests become rows."""

    def store(self, target: Target, request: bytes) -> tuple[int, int]:
        """Return when the request's rows are durable: how many rows and bytes this call itself has brought there."""
        mine = _Waiting(request)
        with self._lock:
            waiting = self._waiting.setdefault(target, [])
            waiting.append(mine)
            is_first = len(waiting) == 1
        if not is_first:
            mine.sleep()
        rows, nbytes = self._store_waiting(target) if not mine.is_answered else (0, 0)
        if mine.error is not None:
            raise mine.error
        return rows, nbytes

    def _store_waiting(self, target: Target) -> tuple[int, int]:
        """Called for the first one that waits; when it returns that one is answered, and those that it took along."""
        rows = nbytes = 0
        group: list[_Waiting] = []
        try:
            with self.converting:
                group = self._take(target)
                made = self._make(target.signal, group)
            for members, batch in made:
                if self._finish(target, members, batch) and isinstance(batch, pa.RecordBatch):
                    rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
        except Exception as error:
            for member in group:
                if not member.is_answered:
                    member.answer(error)
            raise
        return rows, nbytes

    def _take(self, target: Target) -> list[_Waiting]:
        """The first request for a topic and others, as many as fit; the first of the rest has the next turn."""
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
        try:
            return [(group, self._convert(signal, b"".join(member.request for member in group)))]
        except InvalidRequestError as error:
            if len(group) == 1:
                return [(group, error)]
        return [made for member in group for made in self._make(signal, [member])]

    def _finish(self, target: Target, members: list[_Waiting], batch: pa.RecordBatch | InvalidRequestError) -> bool:
        """Bring rows into the log and answer those who sent them."""
        error: IcestreamError | None = None
        if isinstance(batch, InvalidRequestError):
            error = batch
        elif batch.num_rows:
            try:
                self._publish(target, batch)
            except IcestreamError as refusal:
                error = refusal
        for member in members:
            member.answer(error)
        return error is None
