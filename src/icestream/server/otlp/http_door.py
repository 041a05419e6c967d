"""OTLP over HTTP: `POST /v1/traces`, `/v1/logs` and `/v1/metrics`, in protobuf or JSON.

Responses and errors have the format of the request. A body must name its format: a web page cannot send that without
asking first.
"""

import asyncio
import contextlib
from collections.abc import Iterator

import pyarrow as pa
from google.protobuf.json_format import MessageToJson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from icestream.model.errors import IcestreamError, InvalidMessageError, InvalidRequestError, TooLargeError
from icestream.server.http.door import RequestLimit
from icestream.server.http.errors import MethodNotAllowedError, NoSuchRouteError, UnsupportedMediaTypeError, shorten
from icestream.server.http.requests import JSON, bounded_body, check_media_type, media_type
from icestream.server.metrics import BrokerMetrics
from icestream.server.otlp.receiver import Receiver
from icestream.server.otlp.status import Status, status_of
from icestream.storage import ByteBudget
from icestream.telemetry import Signal
from icestream.telemetry.tenants import TelemetrySender

# Compressed bodies are opened in chunks, so that a small body cannot become a large one unseen.


CODECS = ("gzip", "zstd")
_CHUNK_BYTES = 1 << 18


def check_encoding(text: str) -> str | None:
    """The codec that a header `Content-Encoding` names; None for a plain body."""
    name = text.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in CODECS:
        raise UnsupportedMediaTypeError(
            f"a body in the encoding {name[:80]!r} is not taken here",
            operation="receive telemetry",
            remedy=f"use {' or '.join(CODECS)}, or none",
        )
    return name


@contextlib.contextmanager
def plain_body(body: bytearray, codec: str | None, *, max_bytes: int, budget: ByteBudget) -> Iterator[bytes]:
    """The body as it was before compression; what it takes counts as in flight until the block ends."""
    if codec is None:
        yield bytes(body)
        return
    chunks: list[bytes] = []
    taken = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while chunk := _read(stream, codec):
                budget.take(len(chunk))
                taken += len(chunk)
                if taken > max_bytes:
                    raise TooLargeError(
                        f"the body has more than {max_bytes} bytes when decompressed",
                        operation="receive telemetry",
                        remedy="send less at a time",
                        details={"max_bytes": max_bytes},
                    )
                chunks.append(chunk)
        yield b"".join(chunks)
    finally:
        budget.give_back(taken)


def _read(stream: pa.CompressedInputStream, codec: str) -> bytes:
    try:
        chunk: bytes = stream.read(_CHUNK_BYTES)
    except (OSError, pa.ArrowException) as error:
        raise InvalidMessageError(f"the body is not {codec}: {error}", operation="receive telemetry") from error
    return chunk


PROTOBUF = "application/x-protobuf"
_OPERATION = "receive telemetry"


def otlp_app(receiver: Receiver, metrics: BrokerMetrics) -> Starlette:
    """`app.state` has what the door and its connections ask for."""
    app = Starlette(
        routes=[Route(f"/v1/{signal}", _Export(receiver, signal).respond, methods=["POST"]) for signal in Signal],
        middleware=[Middleware(RequestLimit, metrics=metrics, max_requests=receiver.max_requests, door="otlp_http")],
        exception_handlers={HTTPException: _http_exception_response},
    )
    app.router.redirect_slashes = False
    app.state.closing = asyncio.Event()
    app.state.max_connections = receiver.max_requests
    return app


class _Export:
    """One signal's route."""

    def __init__(self, receiver: Receiver, signal: Signal) -> None:
        self._receiver = receiver
        self._signal = signal

    async def respond(self, request: Request) -> Response:
        try:
            return await self._receive(request)
        except ClientDisconnect:
            return _refusal(request, Status.of(InvalidRequestError("the body ended early", operation=_OPERATION)))
        except Exception as error:  # noqa: BLE001 (made into a response, and logged unless it is a refusal)
            return _refusal(request, status_of(error, f"receive {self._signal}"))

    async def _receive(self, request: Request) -> Response:
        receiver = self._receiver
        sender = receiver.identify(_headers(request), self._signal)
        with receiver.counting(self._signal, sender):
            kind = check_media_type(request, PROTOBUF, JSON, operation=_OPERATION)
            codec = check_encoding(request.headers.get("content-encoding", ""))
            max_bytes = receiver.options.max_request_bytes
            async with bounded_body(request, max_bytes=max_bytes, budget=receiver.budget, operation=_OPERATION) as body:
                content = await run_in_threadpool(self._export, sender, kind, codec, body)
        return Response(content, media_type=kind)

    def _export(self, sender: TelemetrySender, kind: str, codec: str | None, body: bytearray) -> bytes:
        receiver = self._receiver
        limit = receiver.options.max_request_bytes
        with plain_body(body, codec, max_bytes=limit, budget=receiver.budget) as plain:
            response = receiver.export(self._signal, sender, plain, is_json=kind == JSON)
        return MessageToJson(response).encode() if kind == JSON else bytes(response.SerializeToString())


def _headers(request: Request) -> dict[str, str]:
    """Different values of one header joined by commas: a request that names two tenants is refused, as over gRPC."""
    return {name: ", ".join(dict.fromkeys(request.headers.getlist(name))) for name in request.headers}


def _refusal(request: Request, status: Status, headers: dict[str, str] | None = None) -> Response:
    headers = dict(headers or {})
    if status.retry_after is not None:
        headers["Retry-After"] = status.retry_after
    if status.http == 401:  # noqa: PLR2004
        headers["WWW-Authenticate"] = "Bearer"
    if media_type(request) == PROTOBUF:
        return Response(status.to_bytes(), status.http, headers, PROTOBUF)
    return Response(status.to_json(), status.http, headers, JSON)


async def _http_exception_response(request: Request, error: Exception) -> Response:
    """What the router itself refuses."""
    assert isinstance(error, HTTPException)
    place = shorten(request.scope["path"])
    if error.status_code == 405:  # noqa: PLR2004
        refusal: IcestreamError = MethodNotAllowedError(
            f"{shorten(request.method)} is not possible here", operation="route", place=place, remedy="use POST"
        )
    else:
        paths = ", ".join(f"/v1/{signal}" for signal in Signal)
        refusal = NoSuchRouteError("there is nothing here", operation="route", place=place, remedy=f"use {paths}")
    return _refusal(request, Status.of(refusal), dict(error.headers or {}))
