"""DoGet of a ticket with `sql`: a query's rows as Arrow batches, made while the client takes them."""

import json
from collections.abc import Callable, Iterator

import pyarrow as pa

from icestream.model.callers import Caller
from icestream.query import QueryEngine
from icestream.server.requests import parse_object, take

_OPERATION = "sql"
_TICKET_FIELDS = frozenset({"sql", "fresh"})


def is_query(ticket: bytes) -> bool:
    """Whether a ticket asks for a query's result, and not for a topic's messages."""
    if b'"sql"' not in ticket:
        return False
    try:
        fields = json.loads(ticket)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and "sql" in fields


class QueryStream:
    """The query runs from the moment that this is made, until its last chunk, or until nobody has it any more."""

    def __init__(self, queries: QueryEngine, ticket: bytes, caller: Caller, cancelled: Callable[[], bool]) -> None:
        fields = parse_object(ticket, operation=_OPERATION, allowed=_TICKET_FIELDS)
        sql = take(fields, "sql", str, operation=_OPERATION, required=True)
        fresh = take(fields, "fresh", bool, operation=_OPERATION, default=True)
        self._query = queries.run(sql, fresh=fresh, caller=caller, cancelled=cancelled)
        self.schema: pa.Schema = self._query.schema

    def chunks(self) -> Iterator[pa.RecordBatch]:
        with self._query:
            yield from self._query.batches()
