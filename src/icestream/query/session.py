"""One DuckDB session per query: an isolated in-memory database, with a deadline and cancellation.

Import this module only where a query runs: DuckDB takes a second to load.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from icestream.config import QuerySettings
from icestream.model.errors import ClosedError, DeadlineError, IcestreamError, InvalidRequestError, LimitReachedError
from icestream.model.names import DEFAULT_NAMESPACE, TopicName

OPERATION = "sql"
_BATCH_ROWS = 128
"""Rows of a batch that DuckDB makes. So few fit into memory even if each is a message of the largest size."""
_CHECK_SECONDS = 0.1


class Execution:
    """Runs one query and owns its session. Ends at the deadline, when the caller is gone, or by `close`.

    A thread watches the deadline, because DuckDB may compute for long without a call into Python.
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
        """Start the statement. Its rows are computed while they are read."""
        with self.using() as session:
            self._result = session.execute(sql).to_arrow_reader(_BATCH_ROWS)
            return self._result.schema

    def next(self) -> pa.RecordBatch | None:
        """Return some rows; None after the last."""
        with self.using():
            try:
                return None if self._result is None else self._result.read_next_batch()
            except StopIteration:
                return None

    def wrap(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass a scan's batches on. They end when the query ends, and their error becomes the query's error."""
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
        """Give exclusive use of the session, which stays open meanwhile. Errors are typed."""
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
        while not self._over.wait(min(_CHECK_SECONDS, max(0.0, self._deadline - time.monotonic()))):
            if time.monotonic() >= self._deadline:
                self._reason = DeadlineError(
                    f"the query took longer than {self._timeout_ms} ms",
                    operation=OPERATION,
                    remedy="select less, or raise query.timeout_ms",
                    retryable=False,
                )
            elif self._cancelled():
                self._reason = _closed()
            if self._reason is not None:
                self._end()
                return

    def _end(self) -> None:
        """Interrupt the statement, wait until it has stopped, and release everything."""
        while not self._in_use.acquire(timeout=_CHECK_SECONDS):
            self._session.interrupt()
        try:
            if not self._over.is_set():
                self._over.set()
                self._release()
                self._released()
        finally:
            self._in_use.release()

    def _release(self) -> None:
        """Close the result, which holds the scans and so files and leases, and the session."""
        result, self._result = self._result, None
        if result is not None:
            result.close()
        self._session.close()


def as_typed(error: Exception) -> IcestreamError:
    """Return DuckDB's error as ours, with its first line. It comes as DuckDB's own or through Arrow's streams."""
    if isinstance(error, IcestreamError):
        return error
    text = str(error).partition("\n")[0]
    if text.startswith("Out of Memory"):
        return LimitReachedError(
            "the query needs more memory than query.max_memory_mb allows",
            operation=OPERATION,
            remedy="select less at once, or raise query.max_memory_mb",
        )
    if text.startswith(("INTERNAL", "FATAL")) or not isinstance(error, duckdb.Error | OSError | pa.ArrowException):
        return IcestreamError(f"internal error: {text}", operation=OPERATION)
    return InvalidRequestError(text, operation=OPERATION)


def _closed() -> ClosedError:
    return ClosedError("the query was ended", operation=OPERATION)


CATALOG = "all topics"
"""No namespace can have this name, so `namespace.name` is never parsed as a table of a DuckDB catalog."""
_RESERVED_SCHEMAS = frozenset({"temp", "system", "pg_catalog", "information_schema"})
"""Schemas of DuckDB's own."""


def open_session(settings: QuerySettings) -> duckdb.DuckDBPyConnection:
    """Open an in-memory database from which a statement reaches no file, network, extension or setting."""
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,  # with more threads DuckDB reads on although the result is not taken
            "memory_limit": f"{settings.max_memory_mb}MiB",
            "temp_directory": "",  # no spilling: a query that needs more memory fails
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,  # otherwise a table name finds Python variables
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET streaming_buffer_size = '64KB'")  # DuckDB does not count the bytes of payloads
    connection.execute(f"ATTACH ':memory:' AS {quoted(CATALOG)}")
    connection.execute(f"USE {quoted(CATALOG)}")
    connection.execute("DETACH memory")
    default = f"{quoted(CATALOG)}.{quoted(DEFAULT_NAMESPACE)}"
    connection.execute(f"CREATE SCHEMA {default}")
    connection.execute(f"USE {default}")
    # From here on a statement reaches only this database, and cannot change these settings.
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def add_topic(connection: duckdb.DuckDBPyConnection, number: int, topic: TopicName, rows: ds.Dataset) -> None:
    """Make the topic a view `namespace.name` of the database."""
    if topic.namespace.lower() in _RESERVED_SCHEMAS:
        raise InvalidRequestError(
            f"topics of the namespace {topic.namespace} cannot be queried: SQL reserves that name",
            operation="sql",
            place=str(topic),
        )
    hidden = f"rows of topic {number}"
    connection.register(hidden, rows)
    schema = f"{quoted(CATALOG)}.{quoted(topic.namespace)}"
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    connection.execute(f"CREATE VIEW {schema}.{quoted(topic.name)} AS SELECT * FROM {quoted(hidden)}")  # noqa: S608


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
