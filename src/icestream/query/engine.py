"""Runs queries: from their text to their rows."""

import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from icestream.config import QuerySettings
from icestream.model.callers import FULL_ACCESS, Caller
from icestream.model.errors import (
    InvalidNameError,
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
    TopicNotFoundError,
)
from icestream.model.names import DEFAULT_NAMESPACE, TopicName, check_part
from icestream.query.topics import QueryTopic, QueryTopics

if TYPE_CHECKING:
    from icestream.query.session import Execution
    from icestream.query.statement import Statement, TableName

_BATCH_BYTES = 1 << 20
_BATCH_ROWS = 1 << 16


class QueryEngine:
    """Runs at most `query.max_queries` queries at once. Thread-safe."""

    def __init__(self, settings: QuerySettings, topics: QueryTopics) -> None:
        self._settings = settings
        self._topics = topics
        self._free = threading.BoundedSemaphore(settings.max_queries)

    def run(
        self,
        sql: str,
        *,
        fresh: bool = True,
        caller: Caller = FULL_ACCESS,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> "Query":
        """Start a query. A wrong query is refused here; its rows are computed while they are read.

        Without `fresh` the query sees committed rows only. Raises if the query names a topic that `caller` may not
        read. The query ends when `cancelled` returns true.
        """
        # DuckDB takes a second to load, so a broker loads it with its first query.
        from icestream.query.dataset import TopicDataset  # noqa: PLC0415
        from icestream.query.session import Execution, add_topic, open_session  # noqa: PLC0415
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
                for number, (name, topic) in enumerate(self._find_topics(statement, caller, fresh=fresh).items()):
                    add_topic(session, number, name, TopicDataset(topic, execution.wrap))
            return Query(execution, execution.start(statement.sql))
        except BaseException:
            execution.close()
            raise

    def _find_topics(self, statement: "Statement", caller: Caller, *, fresh: bool) -> dict[TopicName, QueryTopic]:
        named: dict[TopicName, bool] = {}
        for table in sorted(statement.tables):
            # A name that a WITH clause defines may be that and no topic.
            may_be_with = not table.schema and table.name.lower() in statement.with_names
            try:
                topic = caller.check_topic(_topic_of(table), operation="sql")
            except (InvalidNameError, TopicNotFoundError, PermissionDeniedError):
                if not may_be_with:
                    raise
            else:
                named[topic] = named.get(topic, True) and may_be_with
        found: dict[TopicName, QueryTopic] = {}
        for topic, may_be_with in named.items():  # the caller may read all of them: only now look for the first
            try:
                found[topic] = self._topics.find(topic, fresh=fresh)
            except TopicNotFoundError:
                if not may_be_with:
                    raise
        if len({str(topic).lower() for topic in found}) < len(found):
            raise InvalidRequestError(
                "two topics of the query have names that differ only in case",
                operation="sql",
                remedy="query one of them at a time: SQL does not tell them apart",
            )
        return found


def _topic_of(table: "TableName") -> TopicName:
    from icestream.query.session import CATALOG  # noqa: PLC0415 - loads DuckDB, see above

    namespace = table.schema or DEFAULT_NAMESPACE
    if table.catalog not in ("", CATALOG):
        raise TopicNotFoundError(
            "there is no such topic",
            operation="sql",
            place=f"{table.catalog}.{namespace}.{table.name}",
            remedy='write a topic as namespace.name; quote a part with a dot or a dash: "a.b".name',
        )
    check_part(namespace, what="topic namespace")
    check_part(table.name, what="topic name")
    return TopicName(namespace, table.name)


class Query:
    """The result of a query, as a stream. Not thread-safe.

    The query ends after its last row, by `close`, or when the object is garbage-collected.
    """

    def __init__(self, execution: "Execution", schema: pa.Schema) -> None:
        self._execution = execution
        self.schema = schema
        self._finish = weakref.finalize(self, execution.close)
        self._finish.atexit = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in batches of about 1 MiB."""
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
