"""The broker process: builds its parts, starts them in order, and stops them in reverse.

`Broker` is the storage with its doors. `run` is `icestream serve`: a broker, its Spark pipeline and its table
maintenance, until SIGTERM or SIGINT.
"""

import contextlib
import ctypes
import gc
import json
import logging
import os
import resource
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from types import FrameType, TracebackType
from typing import Self, TextIO, cast

import structlog

from icestream import __version__
from icestream.client import BrokerEndpoint
from icestream.config import LogSettings, Settings
from icestream.model.callers import ALL_NAMESPACES, Callers
from icestream.model.names import url_host
from icestream.model.units import MIB
from icestream.pipeline.maintenance.schedule import maintenance_schedule
from icestream.pipeline.supervisor import LOG_NAME, pipeline_supervisor
from icestream.query import BrokerTopics, QueryEngine
from icestream.server.flight.door import FlightDoor
from icestream.server.http import HttpDoor, http_app
from icestream.server.metrics import BrokerMetrics
from icestream.server.socket.door import SocketDoor
from icestream.storage import IcebergStorage

_CLOSE_SECONDS = 0.25
_SIGNAL_CHECK_SECONDS = 0.5
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_log = structlog.get_logger(__name__)


class Broker:
    """Storage and its doors. `start` returns when all doors are open, `stop` when all accepted messages are safe."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.storage = IcebergStorage(settings)
        self.metrics = BrokerMetrics(self.storage)
        self.storage.on_commit = self.metrics.committed
        self._queries = QueryEngine(settings.query, BrokerTopics(self.storage))
        tokens = settings.auth.token_pairs
        self.pipeline_token = secrets.token_urlsafe(32) if tokens else None
        """Gives the broker's own pipeline access to all namespaces. None if the broker uses no tokens."""
        own = [(ALL_NAMESPACES, self.pipeline_token)] if self.pipeline_token is not None else []
        self._callers = Callers([*tokens, *own])
        self._flight: FlightDoor | None = None
        self._resources = contextlib.ExitStack()
        self.doors: dict[str, str] = {}
        self.ready = False

    def start(self) -> None:
        server = self.settings.server
        if self._callers.has_no_authentication and not _is_loopback(server.host):
            _log.warning("no_authentication", host=server.host, effect="every client has full access; set auth.tokens")
        with contextlib.ExitStack() as resources:
            resources.enter_context(self.storage)
            # Loading the Iceberg library blocks the interpreter for a second: do it before publishers connect.
            self.storage.table_watch.load()
            if server.flight_port >= 0:
                self._flight = FlightDoor(
                    self.storage,
                    self.metrics,
                    host=server.host,
                    port=server.flight_port,
                    version=__version__,
                    queries=self._queries,
                    callers=self._callers,
                )
                resources.callback(self._close_flight, self._flight)
                self.doors["flight"] = f"grpc://{url_host(server.host)}:{self._flight.port}"
                if server.socket_port >= 0:
                    socket_door = SocketDoor(
                        self.storage,
                        self.metrics,
                        self._callers,
                        host=server.host,
                        port=server.socket_port,
                        flight_port=self._flight.port,
                    )
                    resources.callback(socket_door.stop)
                    self._flight.tell_socket(socket_door.address)
                    self.doors["socket"] = f"tcp://{url_host(server.host)}:{socket_door.address.port}"
            if server.http_port >= 0:
                app = http_app(
                    self.storage,
                    self.metrics,
                    version=__version__,
                    ready=lambda: self.ready,
                    doors=lambda: self.doors,
                    queries=self._queries,
                    callers=self._callers,
                )
                http = HttpDoor(app, server.host, server.http_port)
                http.start()
                resources.callback(http.stop, server.shutdown_timeout_ms / 1000)
                self.doors["http"] = http.address
            self._open_otlp(resources)
            self._resources = resources.pop_all()
        self.ready = True

    def _open_otlp(self, resources: contextlib.ExitStack) -> None:
        """Open the OpenTelemetry doors, if they are enabled and their libraries are installed."""
        server = self.settings.server
        if server.otlp_grpc_port < 0 and server.otlp_http_port < 0:
            return
        if find_spec("ptars") is None or find_spec("opentelemetry") is None:
            _log.info("otlp_disabled", reason="icestream[telemetry] is not installed")
            return
        # Imported here: the protocol's libraries are an extra, and take time and memory.
        from icestream.server.otlp import GrpcDoor, Receiver, otlp_app  # noqa: PLC0415

        receiver = Receiver(self.storage, self.metrics)
        timeout = server.shutdown_timeout_ms / 1000
        if server.otlp_grpc_port >= 0:
            grpc = GrpcDoor(receiver, self.metrics, server.host, server.otlp_grpc_port)
            grpc.start()
            resources.callback(grpc.stop, timeout)
            self.doors["otlp_grpc"] = grpc.address
        if server.otlp_http_port >= 0:
            app = otlp_app(receiver, self.metrics)
            http = HttpDoor(app, server.host, server.otlp_http_port, setting="server.otlp_http_port")
            http.start()
            resources.callback(http.stop, timeout)
            self.doors["otlp_http"] = http.address

    def _close_flight(self, door: FlightDoor) -> None:
        """Acknowledge received batches, then close. Clients with idle streams do not delay the end."""
        door.end_streams()
        if not self.storage.budget.wait_until_empty(self.settings.server.shutdown_timeout_ms / 1000):
            _log.warning("batches_not_acknowledged_at_shutdown", bytes=self.storage.budget.used_bytes)
        closing = threading.Thread(target=door.shutdown, name="flight-shutdown", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)

    def stop(self) -> None:
        self.ready = False
        self._resources.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    configure_logging(settings.log)
    raise_file_limit()
    keep_freed_memory()
    stopping = stop_on_signals()
    with Broker(settings) as broker, child_processes(broker):
        for door, address in broker.doors.items():
            sys.stdout.write(f"{door:9} {address}\n")
        freeze_loaded_objects()
        sys.stdout.write(f"ready {json.dumps(broker.doors)}\n")
        sys.stdout.flush()
        # Python runs signal handlers in the main thread when that wakes up. A signal to one of Flight's threads does
        # not wake it up.
        while not stopping.wait(_SIGNAL_CHECK_SECONDS):
            pass
        _log.info("broker_stopping")
    _log.info("broker_stopped")
    sys.stdout.flush()
    sys.stderr.flush()
    # A client with an open stream would keep its thread, and so the interpreter, alive for ever.
    os._exit(0)


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopping


@contextlib.contextmanager
def child_processes(broker: Broker) -> Iterator[None]:
    """Run the pipeline, and table maintenance on schedule, as processes of their own, if they are enabled."""
    settings = broker.settings
    timeout_seconds = settings.server.shutdown_timeout_ms / 1000
    with contextlib.ExitStack() as children:
        reason = _why_no_pipeline(settings)
        if reason is None:
            endpoint = BrokerEndpoint(broker.doors["flight"], token=broker.pipeline_token)
            supervisor = pipeline_supervisor(settings, endpoint)
            broker.metrics.watch_pipeline(lambda: supervisor.state)
            supervisor.start()
            children.callback(supervisor.stop, timeout_seconds)
            _log.info("pipeline_started", log_file=str(settings.data_dir / LOG_NAME))
        else:
            _log.info("pipeline_disabled", reason=reason)
        if settings.maintenance.enabled and _why_no_spark(settings) is None:
            schedule = maintenance_schedule(settings)
            schedule.start()
            children.callback(schedule.stop, timeout_seconds)
        yield


def _why_no_pipeline(settings: Settings) -> str | None:
    """Return why there is no pipeline; None if there is one."""
    if not settings.pipeline.enabled:
        return "pipeline.enabled is off"
    if settings.server.flight_port < 0:
        return "the Flight door is closed"
    return _why_no_spark(settings)


def _why_no_spark(settings: Settings) -> str | None:
    """Return why no Spark process can work on the tables; None if one can."""
    if settings.catalog.type == "memory":
        return "a catalog in memory cannot be shared with another process"
    if find_spec("pyspark") is None or find_spec("pyiceberg") is None:
        return "icestream[pipeline] is not installed"
    return None


class UnfailingStream:
    """Ignores write errors: a full disk must not stop the broker through its own log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure_logging(settings: LogSettings) -> None:
    """Log to stderr in the format and from the level of the settings."""
    renderer = (
        structlog.processors.JSONRenderer()
        if settings.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", UnfailingStream(sys.stderr))),
    )


def keep_freed_memory() -> None:
    """Let the C library keep freed memory, up to a bound, for the next batches. Without glibc nothing changes.

    Batches have megabytes. Fresh pages for each of them cost a busy broker a fifth of its time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 * MIB)
        mallopt(_M_TRIM_THRESHOLD, 256 * MIB)


def freeze_loaded_objects() -> None:
    """Exclude all loaded objects from garbage collection: a full collection delayed publishers by 90 ms."""
    gc.collect()
    gc.freeze()


def raise_file_limit() -> None:
    """Allow as many file descriptors as the system permits: sockets and segments need more than the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
