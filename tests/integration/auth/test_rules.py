"""Every way in has a rule. What is asked for is enumerated from the doors themselves: a new one fails here first."""

import inspect
from collections.abc import Iterator

import pytest
from pyarrow.flight import FlightMethod, FlightServerBase
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from tests.integration.auth.conftest import ACME, ROOT, Guarded

from icestream.model.errors import PermissionDeniedError
from icestream.server.access import ACTIONS, OPERATIONS, VERBS, Access
from icestream.server.flight.door import FlightDoor
from icestream.server.http import http_app


@pytest.fixture
def app(guarded: Guarded) -> Starlette:
    broker = guarded.broker
    return http_app(broker.storage, broker.metrics, version="0", ready=lambda: True, doors=dict)


def test_every_flight_action_has_a_rule_and_every_rule_an_action(guarded: Guarded) -> None:
    assert guarded.broker._flight is not None
    assert {name for name, _ in guarded.broker._flight._actions.descriptions()} == set(ACTIONS)


def test_every_flight_verb_has_a_rule() -> None:
    verbs = {method.name.lower(): method for method in FlightMethod}
    answered = {
        verbs[name]
        for name, made in inspect.getmembers(FlightDoor, inspect.isfunction)
        if name in verbs and made is not getattr(FlightServerBase, name, None)
    }
    assert answered == set(VERBS)


def test_every_http_operation_has_a_rule_and_every_rule_an_operation(app: Starlette) -> None:
    assert {operation.name for operation in app.state.operations} == set(OPERATIONS)


def test_every_route_is_an_operation(app: Starlette) -> None:
    described = {(operation.path, operation.method) for operation in app.state.operations}
    assert set(_routed(app)) == described
    sockets = {route.path for route in app.routes if isinstance(route, WebSocketRoute)}
    assert sockets - {"/{path:path}"} <= {path for path, _ in described}
    assert all(isinstance(route, Route | WebSocketRoute) for route in app.routes)


def _routed(app: Starlette) -> Iterator[tuple[str, str]]:
    for route in app.routes:
        if isinstance(route, Route):
            yield from ((route.path, method) for method in route.methods or () if method != "HEAD")


def test_a_path_with_a_namespace_is_looked_at(app: Starlette) -> None:
    for operation in app.state.operations:
        named = OPERATIONS[operation.name] in (Access.TOPIC, Access.FULL)
        assert ("{namespace}" not in operation.path) or named, operation.name
        assert OPERATIONS[operation.name] is not Access.TOPIC or "{namespace}" in operation.path, operation.name


def test_nothing_but_this_is_open_to_all(app: Starlette) -> None:
    open_paths = {entry.path for entry in app.state.operations if OPERATIONS[entry.name] is Access.OPEN}
    assert open_paths == {"/healthz", "/readyz", "/api/openapi.json", "/api/docs", "/"}


def test_an_action_without_a_rule_is_for_those_who_may_do_everything(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ACTIONS, "ping")
    assert guarded.root.ping()
    with pytest.raises(PermissionDeniedError, match="this needs full access"):
        guarded.acme.ping()


def test_a_route_without_a_rule_is_for_those_who_may_do_everything(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(OPERATIONS, "list_topics")
    for token, status in ((ROOT, 200), (ACME, 403)):
        with guarded.http(token) as http:
            assert http.get("/api/v1/topics").status_code == status


def test_a_verb_without_a_rule_is_for_those_who_may_do_everything(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(VERBS, FlightMethod.DO_ACTION)
    assert guarded.root.ping()
    with pytest.raises(PermissionDeniedError, match="this needs full access"):
        guarded.acme.ping()
