"""An operation of the API: its handler, and all that its description says. Routes and OpenAPI are made from these."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from icestream.model.errors import InvalidRequestError
from icestream.server.http.errors import invalid, shorten

ARROW_STREAM = "application/vnd.apache.arrow.stream"
JSON = "application/json"

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
Content: TypeAlias = Mapping[str, type[BaseModel] | None]
"""By media type: the model of a JSON body, or nothing for other formats."""
Query = TypeVar("Query", bound=BaseModel)


@dataclass(frozen=True)
class Answer:
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
    answers: Mapping[int, Answer]
    query: type[BaseModel] | None = None
    body: Content | None = None
    errors: tuple[int, ...] = ()
    details: str = ""


def parse_query(request: HTTPConnection, model: type[Query], *, operation: str) -> Query:
    """The query, if it has nothing but what the model knows, each once."""
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise InvalidRequestError(f"query: {shorten(name)} is given twice", operation=operation)
        given[name] = value
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise invalid(error, operation=operation, where="query") from None


def refuse_query(request: Request, *, operation: str) -> None:
    if request.query_params:
        names = ", ".join(sorted(set(request.query_params.keys())))
        raise InvalidRequestError(f"query: {shorten(names)} is not known here", operation=operation)
