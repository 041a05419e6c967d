"""An operation of the API: its handler and its description. Routes and the OpenAPI document are made from these."""

import asyncio
import contextlib
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct, inspect
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from icestream.model.callers import FULL_ACCESS, Caller, Callers
from icestream.model.errors import InvalidMessageError, InvalidRequestError, TooLargeError
from icestream.protocol.parsing import convert, parse_unbounded
from icestream.server.access import OPERATIONS, Access
from icestream.server.http.errors import SlowRequestError, UnsupportedMediaTypeError, shorten
from icestream.storage import ByteBudget

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
class HttpOperation:
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


# Bodies. All bytes that have arrived count as bytes in flight, so that many large requests at once are refused instead
# of filling the memory.


MAX_ADMIN_BYTES = 1 << 20
MAX_JSON_VALUES = 1_000_000
"""A parsed value takes up to a hundred times the bytes that it had as text, so their number is bounded as well."""

_PAUSE_SECONDS = 60.0
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


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
        async with contextlib.aclosing(request.stream()) as chunks:
            while chunk := await _next_chunk(chunks, operation):
                if len(body) + len(chunk) > max_bytes:
                    raise _too_large(max_bytes, operation)
                budget.take(len(chunk))
                taken += len(chunk)
                body += chunk
        yield body
    finally:
        budget.give_back(taken)


async def _next_chunk(chunks: AsyncIterator[bytes], operation: str) -> bytes:
    try:
        async with asyncio.timeout(_PAUSE_SECONDS):
            return await anext(chunks)
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


async def json_body(request: Request, kind: type[Parsed], budget: ByteBudget, *, operation: str) -> Parsed:
    """The small JSON body of an administrative request."""
    check_media_type(request, JSON, operation=operation)
    async with bounded_body(request, max_bytes=MAX_ADMIN_BYTES, budget=budget, operation=operation) as body:
        return await run_in_threadpool(parse_json, body, kind, operation=operation)


def parse_json(body: bytearray, kind: type[Parsed], *, operation: str) -> Parsed:
    if _counted_values(body) > MAX_JSON_VALUES and _counted_values(_STRING.sub(b"", body)) > MAX_JSON_VALUES:
        raise InvalidRequestError(
            f"body: more than {MAX_JSON_VALUES} JSON values",
            operation=operation,
            remedy="send less at a time, or Arrow",
        )
    return parse_unbounded(body, kind, operation=operation, where="body")


def _counted_values(text: bytes | bytearray) -> int:
    """How many values the text can hold at most, give or take one; what strings contain is counted too."""
    return text.count(b",") + text.count(b"{") + text.count(b"[")


# Arrow IPC streams as bodies.


_RECORD_BATCH_COMPRESSION = 3
_MESSAGE_HEADER = 2
_EARLY_COMPRESSION = b"ARROW:experimental_compression"  # how Arrow marked it before there was a field for it
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, struct.error)


def read_stream(body: bytearray, *, operation: str) -> pa.RecordBatch:
    """The messages of a stream as one batch.

    Compressed buffers are refused: a few bytes of them can fill the memory before anything can be checked. Nothing is
    joined before it was validated: Arrow trusts lengths and offsets that a hostile client made up.
    """
    try:
        source = pa.py_buffer(body)
        for message in pa.ipc.MessageReader.open_stream(source):
            _check_message(message, operation)
        with pa.ipc.open_stream(source) as reader:
            _ = reader.schema.names  # raises where one is not UTF-8
            batches = [batch for batch in reader if batch.num_rows]
        for batch in batches:
            batch.validate(full=True)
        if not batches:
            raise _invalid("the stream holds no messages", operation)
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    except _ARROW_ERRORS as error:
        raise _invalid(f"not an Arrow IPC stream: {str(error)[:500]}", operation) from None


def _check_message(message: pa.ipc.Message, operation: str) -> None:
    if message.type == "dictionary":
        raise _invalid("dictionary-encoded columns are not taken", operation)
    if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
        raise _invalid("compressed Arrow buffers are not taken: write the stream uncompressed", operation)


def _is_compressed(metadata: bytes) -> bool:
    """Whether a record batch's header has its compression field. Arrow has verified the flatbuffer's bounds before."""
    if _EARLY_COMPRESSION in metadata:
        return True
    message = struct.unpack_from("<I", metadata)[0]
    header = _field(metadata, message, _MESSAGE_HEADER)
    if not header:
        return False
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return bool(_field(metadata, batch, _RECORD_BATCH_COMPRESSION))


def _field(data: bytes, table: int, index: int) -> int:
    """Where a flatbuffer table has a field; 0 where it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    place = 4 + 2 * index
    if place >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + place)[0])
    return table + offset if offset else 0


def _invalid(message: str, operation: str) -> InvalidMessageError:
    return InvalidMessageError(message, operation=operation)


def write_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


# Authorization, before a handler sees the request.


def admit(connection: HTTPConnection, callers: Callers, operation: str) -> None:
    """Note the caller; raise unless it may do this with the topic in the path."""
    access = OPERATIONS.get(operation, Access.FULL)
    if access is Access.OPEN or callers.has_no_authentication:
        connection.state.caller = FULL_ACCESS
        return
    given = connection.headers.getlist("authorization")
    # Which one of several would count is nothing to guess at.
    caller = callers.identify(given[0] if len(given) == 1 else None, operation=operation)
    if access is Access.FULL:
        caller.check_everything(operation=operation)
    if access is Access.TOPIC:
        caller.check(connection.path_params["namespace"], operation=operation)
    connection.state.caller = caller


def caller_of(connection: HTTPConnection) -> Caller:
    """Who was admitted."""
    caller: Caller = connection.state.caller
    return caller
