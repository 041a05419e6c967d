"""Queries from their text to their rows."""

import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from icestream.config import QuerySettings
from icestream.model.callers import EVERYTHING, Caller
from icestream.model.errors import (
    InvalidNameError,
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
    TopicNotFoundError,
)
from icestream.model.names import DEFAULT_NAMESPACE, TopicName, check_part
from icestream.query.sources import Source, Sources

if TYPE_CHECKING:
    from icestream.query.execution import Execution
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
        from icestream.query.execution import Execution  # noqa: PLC0415
        from icestream.query.session import add_topic, open_session  # noqa: PLC0415
        from icestream.query.statement import parse  # noqa: PLC0415
        from icestream.query.topic_dataset import TopicDataset  # noqa: PLC0415

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
    from icestream.query.session import CATALOG  # noqa: PLC0415 - as above

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
