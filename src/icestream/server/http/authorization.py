"""Who calls the HTTP door, and whether that one may: settled before a handler sees the request."""

from starlette.requests import HTTPConnection

from icestream.model.callers import EVERYTHING, Caller, Callers
from icestream.server.access import OPERATIONS, Access


def admit(connection: HTTPConnection, callers: Callers, operation: str) -> None:
    """Note who calls; raise unless that one may do this with the topic that the path names."""
    access = OPERATIONS.get(operation, Access.EVERYTHING)
    if access is Access.OPEN or callers.are_all:
        connection.state.caller = EVERYTHING
        return
    given = connection.headers.getlist("authorization")
    # Which one of several would count is nothing to guess at.
    caller = callers.identify(given[0] if len(given) == 1 else None, operation=operation)
    if access is Access.EVERYTHING:
        caller.check_everything(operation=operation)
    if access is Access.TOPIC:
        caller.check(connection.path_params["namespace"], operation=operation)
    connection.state.caller = caller


def caller_of(connection: HTTPConnection) -> Caller:
    """Who was admitted."""
    caller: Caller = connection.state.caller
    return caller
