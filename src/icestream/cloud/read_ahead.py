"""Reading ranges of objects in the order of a plan, some of them ahead of who asks."""

import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from icestream.cloud.descriptor import ObjectDescriptor
from icestream.cloud.read_pool import ReadPool
from icestream.cloud.store import ObjectStore
from icestream.model.errors import IcestreamError

_MAX_RANGES = 16
"""That one reader has read ahead, however small they are."""


class Range(NamedTuple):
    """Bytes of an object's frames."""

    descriptor: ObjectDescriptor
    start: int
    length: int


class Piece:
    """A range, and its bytes once they are there."""

    def __init__(self, store: ObjectStore, wanted: Range, pool: ReadPool, *, ahead: bool) -> None:
        self.range = wanted
        self._read = partial(store.read, wanted.descriptor.key, wanted.start, wanted.length)
        self._pool = pool
        self._future: Future[bytes] | None = pool.start(self._read, wanted.length) if ahead else None

    @property
    def is_ahead(self) -> bool:
        return self._future is not None

    def data(self) -> bytes:
        """Its bytes; one that no thread has come to yet is read by the caller, who so waits for no other reader."""
        future, self._future = self._future, None
        if future is None:
            return self._read()
        self._give_back(future)
        return self._read() if future.cancel() else future.result()

    def drop(self) -> None:
        future, self._future = self._future, None
        if future is not None:
            self._give_back(future)
            future.cancel()

    def _give_back(self, future: "Future[bytes]") -> None:
        """The bytes are no longer read ahead: at once if they are there, else as soon as nobody reads them."""
        pool, nbytes = self._pool, self.range.length
        future.add_done_callback(lambda _: pool.give_back(nbytes))


class ReadAhead:
    """Not thread-safe."""

    def __init__(self, store: ObjectStore, plan: Iterator[Range], pool: ReadPool) -> None:
        self._store = store
        self._plan = plan
        self._pool = pool
        self._pending: deque[Piece] = deque()
        self._failure: IcestreamError | None = None
        # A reader that was forgotten gives back what it read ahead.
        self._forgotten = weakref.finalize(self, _drop_all, self._pending)
        self._forgotten.atexit = False

    def next(self, *, ahead: bool) -> Piece | None:
        """The following piece; None at the end of the plan. Raises as the plan does, after the pieces before.

        With `ahead` it begins to read those that follow too.
        """
        piece = self._pending.popleft() if self._pending else self._planned(ahead=False)
        if ahead:
            self._fill()
        return piece

    def close(self) -> None:
        self._forgotten()

    def _fill(self) -> None:
        pending = self._pending
        while self._failure is None and len(pending) < _MAX_RANGES:
            if sum(piece.range.length for piece in pending) >= self._pool.reader_bytes:
                return
            try:
                piece = self._planned(ahead=True)
            except IcestreamError as error:
                self._failure = error
                return
            if piece is None:
                return
            pending.append(piece)
            if not piece.is_ahead:
                return

    def _planned(self, *, ahead: bool) -> Piece | None:
        if self._failure is not None:
            raise self._failure
        wanted = next(self._plan, None)
        return Piece(self._store, wanted, self._pool, ahead=ahead) if wanted is not None else None


def _drop_all(pending: deque[Piece]) -> None:
    while pending:
        pending.popleft().drop()
