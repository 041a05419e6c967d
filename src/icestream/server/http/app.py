"""The application: routes made from operations; every failure has the same form."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import groupby

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from icestream.model.callers import Callers
from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.query import BrokerTopics, QueryEngine
from icestream.server.access import callers_of
from icestream.server.http.door import RequestLimit
from icestream.server.http.errors import (
    MethodNotAllowedError,
    NoSuchRouteError,
    error_response,
    shorten,
    unexpected_response,
)
from icestream.server.http.messages import MessagesApi
from icestream.server.http.openapi import DescriptionApi
from icestream.server.http.requests import Handler, HttpOperation, admit
from icestream.server.http.streams import EventsApi, SocketApi
from icestream.server.http.subscriptions import Consumers, ReceivingApi, SubscriptionsApi
from icestream.server.http.system import SqlApi, SystemApi, TenantsApi
from icestream.server.http.topics import CloudApi, TopicsApi
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage, TenantFigures


def http_app(
    storage: IcebergStorage,
    metrics: BrokerMetrics,
    *,
    version: str,
    ready: Callable[[], bool],
    doors: Callable[[], dict[str, str]],
    queries: QueryEngine | None = None,
    callers: Callers | None = None,
) -> Starlette:
    """The application; `callers` are by default those to whom the settings give tokens.

    `app.state.closing` is an event that ends all waiting; `app.state.operations` is what the routes were made of.
    """
    callers = callers or callers_of(storage)
    closing = asyncio.Event()
    max_requests = storage.settings.server.max_connections
    consumers = Consumers(
        max_consumers=max_requests, session_timeout_ms=storage.settings.subscriptions.session_timeout_ms
    )
    sockets = SocketApi(storage, metrics, consumers, closing, callers)
    description = DescriptionApi(lambda: operations, version)
    operations = [
        *TopicsApi(storage).operations(),
        *CloudApi(storage).operations(),
        *MessagesApi(storage, metrics, closing).operations(),
        *SqlApi(storage, queries or QueryEngine(storage.settings.query, BrokerTopics(storage)), closing).operations(),
        *SubscriptionsApi(storage).operations(),
        *ReceivingApi(storage, metrics, consumers, closing).operations(),
        *EventsApi(storage, metrics, consumers, closing).operations(),
        *sockets.operations(),
        *TenantsApi(metrics.tenants or TenantFigures(storage, metrics.pipeline)).operations(),
        *SystemApi(storage, metrics, version=version, ready=ready, doors=doors).operations(),
        *description.operations(),
    ]
    routes: list[BaseRoute] = [*routes_of(operations, callers), *sockets.routes()]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(RequestLimit, metrics=metrics, max_requests=max_requests)],
        exception_handlers={HTTPException: _http_exception_response},
    )
    app.router.redirect_slashes = False
    app.state.closing = closing
    app.state.consumers = consumers
    app.state.max_connections = max_requests
    app.state.operations = operations
    return app


def routes_of(operations: list[HttpOperation], callers: Callers) -> list[Route]:
    """Return one route for each path, so that the refusal of a wrong method names all methods of the path."""
    routes = []
    for path, found in groupby(sorted(operations, key=lambda operation: operation.path), lambda entry: entry.path):
        handlers = {operation.method: _guarded(operation.handler, operation.name, callers) for operation in found}
        routes.append(Route(path, _by_method(handlers), methods=list(handlers)))
    return routes


def _by_method(handlers: dict[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


def _guarded(handler: Handler, name: str, callers: Callers) -> Handler:
    """Return the handler with authorization; what it raises becomes a response."""

    async def respond(request: Request) -> Response:
        try:
            admit(request, callers, name)
            return await handler(request)
        except IcestreamError as error:
            return error_response(error)
        except ClientDisconnect:
            return error_response(InvalidRequestError("the body ended early", operation=name))
        except Exception as error:  # noqa: BLE001 (logged there)
            return unexpected_response(error, name)

    return respond


async def _http_exception_response(request: Request, error: Exception) -> Response:
    """What the router itself refuses."""
    assert isinstance(error, HTTPException)
    place = shorten(request.scope["path"])
    headers = dict(error.headers or {})
    if error.status_code == 405:  # noqa: PLR2004
        allowed = headers.get("Allow", "")
        refusal: IcestreamError = MethodNotAllowedError(
            f"{shorten(request.method)} is not possible here", operation="route", place=place, remedy=f"use {allowed}"
        )
    else:
        refusal = NoSuchRouteError("there is nothing here", operation="route", place=place, remedy="see /api/docs")
    return error_response(refusal, headers)
