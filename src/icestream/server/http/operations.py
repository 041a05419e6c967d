"""An operation of the API: its handler and its description. Routes and the OpenAPI document are made from these."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, inspect
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from icestream.model.errors import InvalidRequestError
from icestream.protocol.parsing import convert
from icestream.server.http.errors import shorten

ARROW_STREAM = "application/vnd.apache.arrow.stream"
JSON = "application/json"

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
Content: TypeAlias = Mapping[str, type[Struct] | None]
"""By media type: the struct of a JSON body, or nothing for other formats."""
Parsed = TypeVar("Parsed")
_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True)
class ResponseSpec:
    text: str
    content: Content = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    name: str
    group: str
    text: str
    handler: Handler
    responses: Mapping[int, ResponseSpec]
    query: type[Struct] | None = None
    body: Content | None = None
    errors: tuple[int, ...] = ()
    details: str = ""


def parse_query(request: HTTPConnection, kind: type[Parsed], *, operation: str) -> Parsed:
    """Return the query; raise if it has unknown parameters, or one of them twice."""
    fields: Any = kind
    numbers = _number_fields(fields)
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise InvalidRequestError(f"query: {shorten(name)} is given twice", operation=operation)
        given[name] = int(value) if name in numbers and _NUMBER.fullmatch(value) else value
    return convert(given, kind, operation=operation, where="query")


@cache
def _number_fields(kind: Any) -> frozenset[str]:
    """Return the parameters that are numbers. In a query everything is text."""
    return frozenset(
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if any(isinstance(one, inspect.IntType) for one in _alternatives(inspect.type_info(field.type)))
    )


def _alternatives(kind: inspect.Type) -> Iterable[inspect.Type]:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if not isinstance(kind, inspect.UnionType):
        return (kind,)
    return [one for member in kind.types for one in _alternatives(member)]


def refuse_query(request: Request, *, operation: str) -> None:
    if request.query_params:
        names = ", ".join(sorted(set(request.query_params.keys())))
        raise InvalidRequestError(f"query: {shorten(names)} is not known here", operation=operation)
