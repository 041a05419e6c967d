"""Requests that wait at the same time become rows, and a frame of the log, together.

Conversion is done by one thread at a time. Whoever comes to it next takes along all requests for the same topic that
have come meanwhile: serialized requests that are joined are a valid request, and a large one costs less an item than
many small ones. When a joined request is refused each is tried alone, so that nobody is refused for another's mistake.
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
        self.error: Exception | None = None
        self._answered = threading.Event()

    def answer(self, error: Exception | None) -> None:
        self.error = error
        self._answered.set()

    def wait(self) -> None:
        self._answered.wait()
        if self.error is not None:
            raise self.error


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
            self._waiting.setdefault(target, []).append(mine)
        rows = nbytes = 0
        group: list[_Waiting] = []
        try:
            with self.converting:
                group = self._take(target, mine)
                made = self._make(target.signal, group)
            for members, batch in made:
                if self._finish(target, members, batch) and isinstance(batch, pa.RecordBatch):
                    rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
        except Exception as error:
            for member in group:
                member.answer(error)
            raise
        mine.wait()
        return rows, nbytes

    def _take(self, target: Target, mine: _Waiting) -> list[_Waiting]:
        """This request and others for the same topic, as many as fit; nothing if somebody took this one along."""
        with self._lock:
            waiting = self._waiting.get(target, [])
            if mine not in waiting:
                return []
            group, size = [mine], len(mine.request)
            for other in waiting:
                if other is not mine and size + len(other.request) <= self._max_bytes:
                    group.append(other)
                    size += len(other.request)
            rest = [other for other in waiting if other not in group]
            if rest:
                self._waiting[target] = rest
            else:
                del self._waiting[target]
            return group

    def _make(self, signal: Signal, group: list[_Waiting]) -> list[_Made]:
        if not group:
            return []
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
