"""Queries from their text to their rows."""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from icestream.config import QuerySettings
from icestream.model.callers import EVERYTHING, Caller
from icestream.model.errors import (
    ClosedError,
    DeadlineError,
    IcestreamError,
    InvalidNameError,
    InvalidRequestError,
    LimitReachedError,
    OverloadedError,
    PermissionDeniedError,
    TopicNotFoundError,
)
from icestream.model.names import DEFAULT_NAMESPACE, TopicName, check_part
from icestream.query.sources import Source, Sources

if TYPE_CHECKING:
    from icestream.query.statement import Statement, TableName

_BATCH_BYTES = 1 << 20
_BATCH_ROWS = 1 << 16


class QueryEngine:
    """Runs a bounded number of queries at once. Thread-safe."""

    def __init__(self, settings: QuerySettings, topics: Sources) -> None:
        self._settings = settings
        self._topics = topics
        self._free = threading.BoundedSemaphore(settings.max_queries)

    def run(
        self,
        sql: str,
        *,
        fresh: bool = True,
        caller: Caller = EVERYTHING,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> "Query":
        """Begin a query. It is refused here if it is wrong; its rows are made while they are read.

        Without `fresh` it sees what the topics' tables hold. It names no topic that `caller` may not touch. It ends
        when `cancelled` says so.
        """
        # DuckDB takes a second to load, which a broker need not spend before its first query.
        from icestream.query.dataset import TopicDataset  # noqa: PLC0415
        from icestream.query.statement import parse  # noqa: PLC0415

        if not self._free.acquire(blocking=False):
            raise OverloadedError(
                f"{self._settings.max_queries} queries run already",
                operation="sql",
                remedy="try again when one has ended, or raise query.max_queries",
            )
        try:
            session = open_session(self._settings)
        except BaseException:
            self._free.release()
            raise
        execution = Execution(
            session, timeout_ms=self._settings.timeout_ms, cancelled=cancelled, released=self._free.release
        )
        try:
            with execution.using() as session:
                statement = parse(session, sql)
                for number, (topic, source) in enumerate(self._sources(statement, caller, fresh=fresh).items()):
                    add_topic(session, number, topic, TopicDataset(source, execution.reading))
            return Query(execution, execution.start(statement.sql))
        except BaseException:
            execution.close()
            raise

    def _sources(self, statement: "Statement", caller: Caller, *, fresh: bool) -> dict[TopicName, Source]:
        named: dict[TopicName, bool] = {}
        for table in sorted(statement.tables):
            is_perhaps_defined = not table.schema and table.name.lower() in statement.with_names
            try:
                topic = caller.check_topic(_topic_of(table), operation="sql")
            except (InvalidNameError, TopicNotFoundError, PermissionDeniedError):
                if not is_perhaps_defined:
                    raise
            else:
                named[topic] = named.get(topic, True) and is_perhaps_defined
        found: dict[TopicName, Source] = {}
        for topic, is_perhaps_defined in named.items():  # all of them may be touched: only now one is looked for
            try:
                found[topic] = self._topics.find(topic, fresh=fresh)
            except TopicNotFoundError:
                if not is_perhaps_defined:
                    raise
        if len({str(topic).lower() for topic in found}) < len(found):
            raise InvalidRequestError(
                "two topics of the query have names that differ in upper and lower case only",
                operation="sql",
                remedy="ask for one of them at a time: to SQL they are the same",
            )
        return found


def _topic_of(table: "TableName") -> TopicName:

    namespace = table.schema or DEFAULT_NAMESPACE
    if table.catalog not in ("", CATALOG):
        raise TopicNotFoundError(
            "there is no such topic",
            operation="sql",
            place=f"{table.catalog}.{namespace}.{table.name}",
            remedy="a topic is namespace.name; put parts with a dot or a dash between double quotes",
        )
    check_part(namespace, what="topic namespace")
    check_part(table.name, what="topic name")
    return TopicName(namespace, table.name)


class Query:
    """A query's result, as a stream. Ended with its last row, by `close`, or when nobody has it. Not thread-safe."""

    def __init__(self, execution: "Execution", schema: pa.Schema) -> None:
        self._execution = execution
        self.schema = schema
        self._finish = weakref.finalize(self, execution.close)
        self._finish.atexit = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in batches of about a mebibyte."""
        try:
            while batches := self._next():
                yield pa.concat_batches(batches)
        finally:
            self.close()

    def _next(self) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        nbytes = rows = 0
        while nbytes < _BATCH_BYTES and rows < _BATCH_ROWS:
            batch = self._execution.next()
            if batch is None:
                break
            found.append(batch)
            nbytes += batch.nbytes
            rows += batch.num_rows
        return found

    def close(self) -> None:
        self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# --------------------
# A query that runs: within its time, ended by who asked for it, and its errors in icestream's words.


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


# --------------------
# A database in memory for one query, without any way out of it, in which topics are views.


CATALOG = "all topics"
"""A name that no namespace can have, so that `namespace.name` is never taken for a table of a catalog of that name."""
_TAKEN = frozenset({"temp", "system", "pg_catalog", "information_schema"})
"""Names that DuckDB does not give away."""


def open_session(settings: QuerySettings) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,  # with more of them DuckDB reads on and on, whatever of the result is taken
            "memory_limit": f"{settings.max_memory_mb}MiB",
            "temp_directory": "",  # nothing is spilled: a query that needs more memory fails
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,  # else a table name finds variables of this program
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET streaming_buffer_size = '64KB'")  # it does not count the bytes of payloads
    connection.execute(f"ATTACH ':memory:' AS {quoted(CATALOG)}")
    connection.execute(f"USE {quoted(CATALOG)}")
    connection.execute("DETACH memory")
    default = f"{quoted(CATALOG)}.{quoted(DEFAULT_NAMESPACE)}"
    connection.execute(f"CREATE SCHEMA {default}")
    connection.execute(f"USE {default}")
    # From here on a statement can reach nothing but what is in the database, and change none of this.
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def add_topic(connection: duckdb.DuckDBPyConnection, number: int, topic: TopicName, rows: ds.Dataset) -> None:
    if topic.namespace.lower() in _TAKEN:
        raise InvalidRequestError(
            f"topics of the namespace {topic.namespace} cannot be queried: SQL has that name for itself",
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
