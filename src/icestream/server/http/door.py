"""The HTTP door: uvicorn on a thread and an event loop of its own."""

import asyncio
import contextlib
import logging
import socket
import threading
from typing import Any

import structlog
import uvicorn
from starlette.applications import Starlette

from icestream.model.errors import UnavailableError
from icestream.server.http.bodies import MAX_ADMIN_BYTES
from icestream.server.http.connection import BoundedConnection, BoundedWebSocket

_BACKLOG = 1024
_TICKS_A_SECOND = 10  # uvicorn counts tenths, and does its regular work every tenth one
_STOP_MARGIN_SECONDS = 5.0
_log = structlog.get_logger(__name__)


class HttpDoor:
    """Serves an application between `start` and `stop`; `port` and `address` are known once it has started."""

    def __init__(self, app: Starlette, host: str, port: int, *, setting: str = "server.http_port") -> None:
        """`setting` is what an error names when the port cannot be had."""
        self._app = app
        self._setting = setting
        self._host = host
        self.port = port
        self._thread: threading.Thread | None = None
        self._server: _Server | None = None

    @property
    def address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        """Return once the door is open."""
        listener = self._listen()
        self.port = listener.getsockname()[1]
        _redirect_uvicorn_logs()
        config = uvicorn.Config(
            self._app,
            http=BoundedConnection,
            ws=BoundedWebSocket,
            ws_max_size=MAX_ADMIN_BYTES,
            ws_per_message_deflate=False,
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._server.run_on, args=(listener,), name="http-door", daemon=True)
        self._thread.start()
        self._server.settled.wait()
        if not self._server.started:
            raise UnavailableError("the HTTP door did not open", operation="open door", place=self.address)

    def _listen(self) -> socket.socket:
        try:
            # The protocol must be named: only then asyncio turns delayed sending off, which would cost 40 ms an answer.
            family, kind, protocol, _, address = socket.getaddrinfo(
                self._host, self.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(_BACKLOG)
            except OSError:
                listener.close()
                raise
        except (OSError, UnicodeError) as error:
            raise UnavailableError(
                f"the HTTP door cannot be opened: {getattr(error, 'strerror', None) or error}",
                operation="open door",
                place=f"{self._host}:{self.port}",
                remedy=f"stop what listens there, or set server.host and {self._setting}",
                retryable=False,
            ) from error
        return listener

    def stop(self, timeout: float = 30.0) -> None:
        """Take no more requests, let the open ones finish, and cut those that have not after `timeout` seconds."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        server.config.timeout_graceful_shutdown = timeout  # type: ignore[assignment]  # asyncio takes fractions too
        server.should_exit = True
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            server.loop.call_soon_threadsafe(server.stopping.set)
            server.loop.call_soon_threadsafe(self._app.state.closing.set)
        thread.join(timeout + _STOP_MARGIN_SECONDS)
        if thread.is_alive():
            _log.warning("a request kept the HTTP door open")
        self._server = self._thread = None


class _Server(uvicorn.Server):
    """Says when it listens, or that it never will."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()
        self.stopping = asyncio.Event()

    def run_on(self, listener: socket.socket) -> None:
        try:
            self.run(sockets=[listener])
        except Exception:  # noqa: BLE001 (logged; whoever started the door sees that it has not started)
            _log.exception("the HTTP door failed")
        finally:
            listener.close()
            self.settled.set()

    async def main_loop(self) -> None:
        """Like uvicorn's, but it sleeps between the seconds and is woken to stop."""
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += _TICKS_A_SECOND
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.stopping.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.settled.set()


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        exc_info: Any = record.exc_info
        _log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=exc_info)


def _redirect_uvicorn_logs() -> None:
    """Warnings and worse go where the broker's own logs go; the rest is of no interest."""
    logger = logging.getLogger("uvicorn")
    logger.handlers = [_ToStructlog()]
    logger.propagate = False
    logger.setLevel(logging.WARNING)
