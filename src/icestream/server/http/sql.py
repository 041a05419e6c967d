"""SQL over HTTP: a bounded number of rows as JSON."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from icestream.model.callers import Caller
from icestream.model.json_rows import json_rows
from icestream.query import Query, QueryEngine
from icestream.server.http.authorization import caller_of
from icestream.server.http.bodies import json_body
from icestream.server.http.errors import json_response
from icestream.server.http.models import SqlBody, SqlColumn, SqlRows
from icestream.server.http.operations import JSON, Operation, ResponseSpec, refuse_query
from icestream.server.http.waiting import ends_of
from icestream.storage import IcebergStorage


class SqlApi:
    def __init__(self, storage: IcebergStorage, queries: QueryEngine, closing: asyncio.Event) -> None:
        self._storage = storage
        self._queries = queries
        self._closing = closing

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                "/api/v1/sql",
                "sql",
                "sql",
                "Query topics with SQL",
                self.sql,
                {200: ResponseSpec("The first rows of the result.", {JSON: SqlRows})},
                body={JSON: SqlBody},
                errors=(400, 404, 413, 415, 429, 503, 504),
                details="Rows not yet in the tables are seen too, unless `fresh` is false. An answer has at most "
                "`query.max_result_rows` rows; larger results are for the Flight door.",
            )
        ]

    async def sql(self, request: Request) -> Response:
        refuse_query(request, operation="sql")
        asked = await json_body(request, SqlBody, self._storage.budget, operation="sql")
        async with ends_of(request, self._closing) as ends:
            caller = caller_of(request)
            return await run_in_threadpool(self._answer, asked, caller, lambda: any(end.done() for end in ends))

    def _answer(self, asked: SqlBody, caller: Caller, cancelled: Callable[[], bool]) -> Response:
        with self._queries.run(asked.sql, fresh=asked.fresh, caller=caller, cancelled=cancelled) as query:
            rows, is_cut = self._first_rows(query)
        columns = [SqlColumn(field.name, str(field.type)) for field in query.schema]
        return json_response(SqlRows(columns, rows, is_cut))

    def _first_rows(self, query: Query) -> tuple[list[dict[str, Any]], bool]:
        """As many rows as an answer may have, and whether there were more."""
        settings = self._storage.settings.query
        rows: list[dict[str, Any]] = []
        bytes_left = settings.max_result_bytes
        for batch in query.batches():
            room = settings.max_result_rows - len(rows)
            if batch.nbytes > bytes_left:
                room = min(room, batch.num_rows * bytes_left // batch.nbytes)
            rows += json_rows(batch.slice(0, room))
            if room < batch.num_rows:
                return rows, True
            bytes_left -= batch.nbytes
        return rows, False
