"""The broker over HTTP: health, metrics, figures, addresses, tenants and SQL."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from icestream.model.callers import Caller
from icestream.model.errors import UnavailableError
from icestream.model.json_rows import json_rows
from icestream.protocol.admin import TenantPage, TenantStats
from icestream.query import Query, QueryEngine
from icestream.server.calls import broker_stats, subscription_stats, topics_of
from icestream.server.http.errors import json_response
from icestream.server.http.messages import ends_of
from icestream.server.http.models import (
    Doors,
    Health,
    HttpBrokerStats,
    HttpStats,
    SqlBody,
    SqlColumn,
    SqlRows,
    StatsQuery,
    TenantsQuery,
)
from icestream.server.http.requests import (
    JSON,
    HttpOperation,
    ResponseSpec,
    caller_of,
    json_body,
    parse_query,
    refuse_query,
)
from icestream.server.http.topics import page_of
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage, TenantFigures, topic_stats


class SystemApi:
    def __init__(
        self,
        storage: IcebergStorage,
        metrics: BrokerMetrics,
        *,
        version: str,
        ready: Callable[[], bool],
        doors: Callable[[], dict[str, str]],
    ) -> None:
        self._storage = storage
        self._metrics = metrics
        self._version = version
        self._ready = ready
        self._doors = doors

    def operations(self) -> list[HttpOperation]:
        return [
            HttpOperation(
                "GET",
                "/healthz",
                "health",
                "broker",
                "Whether the process is alive",
                self.health,
                {200: ResponseSpec("The process is alive.", {JSON: Health})},
            ),
            HttpOperation(
                "GET",
                "/readyz",
                "readiness",
                "broker",
                "Whether all doors are open",
                self.readiness,
                {200: ResponseSpec("All doors are open.", {JSON: Health})},
                errors=(503,),
            ),
            HttpOperation(
                "GET",
                "/metrics",
                "metrics",
                "broker",
                "Metrics for Prometheus",
                self.metrics,
                {
                    200: ResponseSpec(
                        "In the text format, or in OpenMetrics where that is accepted.", {"text/plain": None}
                    )
                },
            ),
            HttpOperation(
                "GET",
                "/api/v1/stats",
                "stats",
                "broker",
                "Figures of the broker and its topics",
                self.stats,
                {200: ResponseSpec("The figures.", {JSON: HttpStats})},
                query=StatsQuery,
                errors=(400, 404, 503),
                details="Topics that were not used since the start are left out unless asked for with `topic`.",
            ),
            HttpOperation(
                "GET",
                "/api/v1/doors",
                "doors",
                "broker",
                "The addresses that the broker listens on",
                self.doors,
                {200: ResponseSpec("Address by door.", {JSON: Doors})},
                errors=(400,),
            ),
        ]

    async def health(self, _: Request) -> Response:
        return json_response(Health("alive"))

    async def readiness(self, _: Request) -> Response:
        if not self._ready():
            raise UnavailableError("the broker is not ready", operation="readiness", remedy="wait and ask again")
        return json_response(Health("ready"))

    async def metrics(self, request: Request) -> Response:
        text, content_type = await run_in_threadpool(self._metrics.render, request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    async def stats(self, request: Request) -> Response:
        query = parse_query(request, StatsQuery, operation="stats")
        return json_response(await run_in_threadpool(self._figures, query, caller_of(request)))

    def _figures(self, query: StatsQuery, caller: Caller) -> HttpStats:
        storage = self._storage
        if query.topic:
            found = [storage.topic(caller.check_topic(query.topic, operation="stats"))]
        else:
            found = topics_of(storage, caller, query.prefix)
        opened = found if query.topic else [topic for topic in found if topic.opened_log is not None]
        topics, next_after = page_of(opened, query)
        visible = topics_of(storage, caller)
        broker = broker_stats(storage, self._version, len(visible))
        open_topics = sum(topic.opened_log is not None for topic in visible)
        return HttpStats(
            broker=HttpBrokerStats(**msgspec.structs.asdict(broker), open_topics=open_topics),
            topics=[topic_stats(topic) for topic in topics],
            subscriptions=[figures for topic in topics for figures in subscription_stats(storage, topic.name)],
            next_after=next_after,
        )

    async def doors(self, request: Request) -> Response:
        refuse_query(request, operation="doors")
        return json_response(Doors(self._doors()))


TENANTS_PATH = "/api/v1/tenants"


class TenantsApi:
    def __init__(self, tenants: TenantFigures) -> None:
        self._tenants = tenants

    def operations(self) -> list[HttpOperation]:
        return [
            HttpOperation(
                "GET",
                TENANTS_PATH,
                "list_tenants",
                "tenants",
                "Figures of tenants by name",
                self.list,
                {200: ResponseSpec("A page of tenants.", {JSON: TenantPage})},
                query=TenantsQuery,
                errors=(400, 503),
                details="Since the broker started. A tenant's own token sees that tenant alone.",
            ),
            HttpOperation(
                "GET",
                f"{TENANTS_PATH}/{{tenant}}",
                "describe_tenant",
                "tenants",
                "Figures of a tenant",
                self.describe,
                {200: ResponseSpec("The tenant.", {JSON: TenantStats})},
                errors=(400, 404, 503),
            ),
        ]

    async def list(self, request: Request) -> Response:
        query = parse_query(request, TenantsQuery, operation="list tenants")
        caller = caller_of(request)
        return json_response(await run_in_threadpool(self._tenants.page, caller, query.after, query.limit))

    async def describe(self, request: Request) -> Response:
        refuse_query(request, operation="describe tenant")
        caller, tenant = caller_of(request), request.path_params["tenant"]
        return json_response(
            await run_in_threadpool(lambda: self._tenants.one(caller, tenant, operation="describe tenant"))
        )


class SqlApi:
    def __init__(self, storage: IcebergStorage, queries: QueryEngine, closing: asyncio.Event) -> None:
        self._storage = storage
        self._queries = queries
        self._closing = closing

    def operations(self) -> list[HttpOperation]:
        return [
            HttpOperation(
                "POST",
                "/api/v1/sql",
                "sql",
                "sql",
                "Query topics with SQL",
                self.sql,
                {200: ResponseSpec("The first rows of the result.", {JSON: SqlRows})},
                body={JSON: SqlBody},
                errors=(400, 404, 413, 415, 429, 503, 504),
                details="Rows not yet in the tables are seen too, unless `fresh` is false. A response has at most "
                "`query.max_result_rows` rows; larger results are for the Flight door.",
            )
        ]

    async def sql(self, request: Request) -> Response:
        refuse_query(request, operation="sql")
        asked = await json_body(request, SqlBody, self._storage.budget, operation="sql")
        async with ends_of(request, self._closing) as ends:
            caller = caller_of(request)
            return await run_in_threadpool(self._run, asked, caller, lambda: any(end.done() for end in ends))

    def _run(self, asked: SqlBody, caller: Caller, cancelled: Callable[[], bool]) -> Response:
        with self._queries.run(asked.sql, fresh=asked.fresh, caller=caller, cancelled=cancelled) as query:
            rows, is_cut = self._first_rows(query)
        columns = [SqlColumn(field.name, str(field.type)) for field in query.schema]
        return json_response(SqlRows(columns, rows, is_cut))

    def _first_rows(self, query: Query) -> tuple[list[dict[str, Any]], bool]:
        """Return as many rows as a response may have, and whether there were more."""
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
