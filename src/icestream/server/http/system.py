"""Health, metrics, figures and addresses over HTTP."""

from collections.abc import Callable

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from icestream.model.callers import Caller
from icestream.model.errors import UnavailableError
from icestream.server.access import subscription_stats, topics_of
from icestream.server.flight.actions import broker_stats
from icestream.server.http.authorization import caller_of
from icestream.server.http.errors import json_response
from icestream.server.http.models import Doors, Health, HttpBrokerStats, HttpStats, StatsQuery
from icestream.server.http.operations import JSON, Operation, ResponseSpec, parse_query, refuse_query
from icestream.server.http.topics import page_of
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage
from icestream.storage.stats import topic_stats


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

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/healthz",
                "health",
                "broker",
                "Whether the process is alive",
                self.health,
                {200: ResponseSpec("It is.", {JSON: Health})},
            ),
            Operation(
                "GET",
                "/readyz",
                "readiness",
                "broker",
                "Whether all doors are open",
                self.readiness,
                {200: ResponseSpec("They are.", {JSON: Health})},
                errors=(503,),
            ),
            Operation(
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
            Operation(
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
            Operation(
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
