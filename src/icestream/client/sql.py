"""SQL over topics, run by the broker."""

from collections.abc import Generator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.connection import Connection


class SqlCalls:
    """The calls for SQL, which `Client` offers as its own."""

    _connection: Connection

    def sql(self, query: str, *, fresh: bool = True) -> pa.Table:
        """The result of a SELECT in which topics are tables, such as `SELECT count(*) FROM default.events`.

        What is not in the topics' tables yet is seen too, unless `fresh` is False.
        """
        stream = self._query(query, fresh=fresh)
        try:
            return stream.read_all()
        except (fl.FlightError, pa.ArrowException) as error:
            raise self._connection.typed(error, "sql") from error

    def sql_batches(self, query: str, *, fresh: bool = True) -> Generator[pa.RecordBatch, None, None]:
        """Like `sql`, for results that do not fit into memory: batches, at least one, made while they are taken.

        Whoever stops taking them ends the query.
        """
        stream = self._query(query, fresh=fresh)
        try:
            yield pa.RecordBatch.from_pylist([], stream.schema)
            for chunk in stream:
                yield chunk.data
        except (fl.FlightError, pa.ArrowException) as error:
            raise self._connection.typed(error, "sql") from error
        finally:
            stream.cancel()

    def _query(self, query: str, *, fresh: bool) -> Any:
        return self._connection.get({"sql": query, "fresh": fresh}, "sql")
