"""Reading request bodies: in pieces, within bounds, and only in the format that was asked for.

What has arrived of all bodies together counts as bytes in flight, so that many large requests at once are refused
instead of filling the memory.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from icestream.model.errors import InvalidRequestError, TooLargeError
from icestream.server.http.errors import SlowRequestError, UnsupportedMediaTypeError, invalid
from icestream.server.http.operations import JSON
from icestream.storage.budget import ByteBudget

MAX_ADMIN_BYTES = 1 << 20
MAX_JSON_VALUES = 1_000_000
"""A parsed value takes up to a hundred times the bytes that it had as text, so their number is bounded as well."""

_PAUSE_SECONDS = 60.0
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
Parsed = TypeVar("Parsed", bound=BaseModel)


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_media_type(request: Request, *allowed: str, operation: str) -> str:
    """The body's format. It must be named: so no web page can send one without the browser asking first."""
    given = media_type(request)
    if given not in allowed:
        raise UnsupportedMediaTypeError(
            f"a body of type {given[:80]!r} is not taken here" if given else "the body's Content-Type is missing",
            operation=operation,
            remedy=f"send Content-Type: {' or '.join(allowed)}",
        )
    return given


@contextlib.asynccontextmanager
async def bounded_body(
    request: Request, *, max_bytes: int, budget: ByteBudget, operation: str
) -> AsyncIterator[bytearray]:
    """The body, counted as in flight until the block ends; refused as soon as it is seen to be too large."""
    body = bytearray()
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:19]) > max_bytes:
        raise _too_large(max_bytes, operation)
    taken = 0
    try:
        async with contextlib.aclosing(request.stream()) as pieces:
            while piece := await _next_piece(pieces, operation):
                if len(body) + len(piece) > max_bytes:
                    raise _too_large(max_bytes, operation)
                budget.take(len(piece))
                taken += len(piece)
                body += piece
        yield body
    finally:
        budget.give_back(taken)


async def _next_piece(pieces: AsyncIterator[bytes], operation: str) -> bytes:
    try:
        async with asyncio.timeout(_PAUSE_SECONDS):
            return await anext(pieces)
    except TimeoutError:
        raise SlowRequestError(
            f"nothing of the body came for {_PAUSE_SECONDS:.0f} seconds", operation=operation
        ) from None


def _too_large(max_bytes: int, operation: str) -> TooLargeError:
    return TooLargeError(
        f"the body has more than {max_bytes} bytes",
        operation=operation,
        remedy="send less at a time",
        details={"max_bytes": max_bytes},
    )


async def json_body(request: Request, model: type[Parsed], budget: ByteBudget, *, operation: str) -> Parsed:
    """The small JSON body of an administrative request."""
    check_media_type(request, JSON, operation=operation)
    async with bounded_body(request, max_bytes=MAX_ADMIN_BYTES, budget=budget, operation=operation) as body:
        return await run_in_threadpool(parse_json, body, model, operation=operation)


def parse_json(body: bytearray, model: type[Parsed], *, operation: str) -> Parsed:
    if _counted_values(body) > MAX_JSON_VALUES and _counted_values(_STRING.sub(b"", body)) > MAX_JSON_VALUES:
        raise InvalidRequestError(
            f"body: more than {MAX_JSON_VALUES} JSON values",
            operation=operation,
            remedy="send less at a time, or Arrow",
        )
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error, operation=operation, where="body") from None


def _counted_values(text: bytes | bytearray) -> int:
    """How many values the text can hold at most, give or take one; what strings contain is counted too."""
    return text.count(b",") + text.count(b"{") + text.count(b"[")
