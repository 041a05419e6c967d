"""A query that runs: within its time, ended by who asked for it, and its errors in icestream's words."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import duckdb
import pyarrow as pa

from icestream.model.errors import (
    ClosedError,
    DeadlineError,
    IcestreamError,
    InvalidRequestError,
    LimitReachedError,
)

OPERATION = "sql"
_ROWS = 128
"""Of a batch that DuckDB makes: so few that they fit into memory where each is a message of the largest size."""
_LOOK_SECONDS = 0.1


class Execution:
    """Owns the session. Closed when its time is up, when who asked is gone, or by `close`, whichever is first.

    A thread of its own watches over it, for DuckDB may compute for long without asking for anything.
    """

    def __init__(
        self,
        session: duckdb.DuckDBPyConnection,
        *,
        timeout_ms: int,
        cancelled: Callable[[], bool],
        released: Callable[[], None],
    ) -> None:
        self._session = session
        self._timeout_ms = timeout_ms
        self._deadline = time.monotonic() + timeout_ms / 1000
        self._cancelled = cancelled
        self._released = released
        self._in_use = threading.Lock()
        self._over = threading.Event()
        self._reason: IcestreamError | None = None
        self._result: pa.RecordBatchReader | None = None
        self._watcher = threading.Thread(target=self._watch, name="query-watch", daemon=True)
        self._watcher.start()

    def start(self, sql: str) -> pa.Schema:
        """Run the statement; its rows are made while they are asked for."""
        with self.using() as session:
            self._result = session.execute(sql).to_arrow_reader(_ROWS)
            return self._result.schema

    def next(self) -> pa.RecordBatch | None:
        """Some rows; None behind the last."""
        with self.using():
            try:
                return None if self._result is None else self._result.read_next_batch()
            except StopIteration:
                return None

    def reading(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A scan's batches, which end when the query does, and whose error is the query's."""
        try:
            for batch in batches:
                self._check()
                yield batch
        except Exception as error:
            self._reason = self._reason or as_typed(error)
            raise
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def close(self) -> None:
        self._end()
        if threading.current_thread() is not self._watcher:
            self._watcher.join()

    @contextlib.contextmanager
    def using(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The session, which is one's own meanwhile, and is not closed. Errors come out typed."""
        with self._in_use:
            self._check()
            try:
                yield self._session
            except Exception as error:
                raise self._reason or as_typed(error) from error

    def _check(self) -> None:
        if self._over.is_set() or self._reason is not None:
            raise self._reason or _closed()

    def _watch(self) -> None:
        while not self._over.wait(min(_LOOK_SECONDS, max(0.0, self._deadline - time.monotonic()))):
            if time.monotonic() >= self._deadline:
                self._reason = DeadlineError(
                    f"the query took longer than {self._timeout_ms} ms",
                    operation=OPERATION,
                    remedy="ask for less, or raise query.timeout_ms",
                    retryable=False,
                )
            elif self._cancelled():
                self._reason = _closed()
            if self._reason is not None:
                self._end()
                return

    def _end(self) -> None:
        """Interrupt what runs, and when it has stopped let everything go."""
        while not self._in_use.acquire(timeout=_LOOK_SECONDS):
            self._session.interrupt()
        try:
            if not self._over.is_set():
                self._over.set()
                self._let_go()
                self._released()
        finally:
            self._in_use.release()

    def _let_go(self) -> None:
        """The result is what keeps the scans, and with them files and leases."""
        result, self._result = self._result, None
        if result is not None:
            result.close()
        self._session.close()


def as_typed(error: Exception) -> IcestreamError:
    """DuckDB's errors, which come as its own or through Arrow's streams; the first line is what helps users."""
    if isinstance(error, IcestreamError):
        return error
    text = str(error).partition("\n")[0]
    if text.startswith("Out of Memory"):
        return LimitReachedError(
            "the query needs more memory than it may have",
            operation=OPERATION,
            remedy="ask for less at once, or raise query.max_memory_mb",
        )
    if text.startswith(("INTERNAL", "FATAL")) or not isinstance(error, duckdb.Error | OSError | pa.ArrowException):
        return IcestreamError(f"internal error: {text}", operation=OPERATION)
    return InvalidRequestError(text, operation=OPERATION)


def _closed() -> ClosedError:
    return ClosedError("the query was ended", operation=OPERATION)
