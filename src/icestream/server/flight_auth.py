"""Who calls the Flight door: from the header `authorization` of each call, before anything else of it is looked at."""

from typing import Any

from pyarrow import flight

from icestream.model.callers import EVERYTHING, Caller, Callers
from icestream.model.errors import IcestreamError
from icestream.server.access import VERBS, Access
from icestream.server.flight_errors import to_flight_error

_KEY = "caller"
_OPERATION = "connect"


class _LetIn(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow ships no types
    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.caller = caller


class _Doorkeeper(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow ships no types
    def __init__(self, callers: Callers) -> None:
        super().__init__()
        self._callers = callers

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[Any]]) -> _LetIn:
        """Who calls; raises, and so ends the call, where nobody does who may."""
        given = headers.get("authorization", [])
        # Which one of several would count is nothing to guess at.
        authorization = given[0] if len(given) == 1 and isinstance(given[0], str) else None
        try:
            caller = self._callers.identify(authorization, operation=_OPERATION)
            if VERBS.get(info.method, Access.EVERYTHING) is Access.EVERYTHING:
                caller.check_everything(operation=info.method.name.lower())
        except IcestreamError as error:
            raise to_flight_error(error) from None
        return _LetIn(caller)


def middleware_for(callers: Callers) -> dict[str, flight.ServerMiddlewareFactory]:
    """What a Flight server is to have; nothing where nobody needs a token."""
    return {} if callers.are_all else {_KEY: _Doorkeeper(callers)}


def caller_of(context: flight.ServerCallContext, callers: Callers) -> Caller:
    """Who was let in."""
    if callers.are_all:
        return EVERYTHING
    caller: Caller = context.get_middleware(_KEY).caller
    return caller
