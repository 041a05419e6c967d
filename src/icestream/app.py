"""The broker process: builds the parts, starts them in order, and stops them in reverse."""

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
from icestream.config import LogSettings, Settings
from icestream.model.callers import ALL_NAMESPACES, Callers
from icestream.model.units import MIB
from icestream.pipeline.maintenance.schedule import maintenance_schedule
from icestream.pipeline.supervisor import LOG_NAME, pipeline_supervisor
from icestream.query import BrokerTopics, QueryEngine
from icestream.server.flight.door import FlightDoor
from icestream.server.http import HttpDoor, http_app
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage

_CLOSE_SECONDS = 1.0
_SIGNAL_CHECK_SECONDS = 0.5
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_log = structlog.get_logger(__name__)


class Broker:
    """Storage and its doors. `start` returns when all doors are open; `stop` when all that was accepted is safe."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.storage = IcebergStorage(settings)
        self.metrics = BrokerMetrics(self.storage)
        self.storage.on_commit = self.metrics.committed
        self._queries = QueryEngine(settings.query, BrokerTopics(self.storage))
        tokens = settings.auth.token_pairs
        self.pipeline_token = secrets.token_urlsafe(32) if tokens else None
        """For the pipeline beside this broker: as good as one of `*`, until the broker ends. None: none is needed."""
        own = [(ALL_NAMESPACES, self.pipeline_token)] if self.pipeline_token is not None else []
        self._callers = Callers([*tokens, *own])
        self._flight: FlightDoor | None = None
        self._resources = contextlib.ExitStack()
        self.doors: dict[str, str] = {}
        self.ready = False

    def start(self) -> None:
        server = self.settings.server
        if self._callers.are_all and not _is_loopback(server.host):
            _log.warning("whoever reaches this address may do everything: auth.tokens is not set", host=server.host)
        with contextlib.ExitStack() as resources:
            resources.enter_context(self.storage)
            # The Iceberg library takes a second to load, in which publishers would wait for the interpreter.
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
                self.doors["flight"] = f"grpc://{server.host}:{self._flight.port}"
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
        """The doors for OpenTelemetry, where they are wanted and the libraries are there."""
        server = self.settings.server
        if server.otlp_grpc_port < 0 and server.otlp_http_port < 0:
            return
        if find_spec("ptars") is None or find_spec("opentelemetry") is None:
            _log.info("no doors for OpenTelemetry", reason="icestream[telemetry] is not installed")
            return
        # Imported where it is wanted: the protocol's libraries are an extra, and take time and memory.
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
        """Answer what was received, then close. A client that keeps an idle stream open is not waited for."""
        door.end_streams()
        if not self.storage.budget.wait_until_empty(self.settings.server.shutdown_timeout_ms / 1000):
            _log.warning("some batches were not answered in time", bytes=self.storage.budget.used_bytes)
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
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with Broker(settings) as broker, _pipeline_beside(broker):
        for door, address in broker.doors.items():
            sys.stdout.write(f"{door:9} {address}\n")
        spare_what_is_loaded()
        sys.stdout.write(f"ready {json.dumps(broker.doors)}\n")
        sys.stdout.flush()
        # Python runs the handler of a signal in the main thread, when that wakes; a signal that one of Flight's threads
        # took does not wake it.
        while not stopping.wait(_SIGNAL_CHECK_SECONDS):
            pass
        _log.info("stopping")
    _log.info("stopped")
    sys.stdout.flush()
    sys.stderr.flush()
    # A client that keeps its stream open would keep its thread, and the interpreter, waiting for ever.
    os._exit(0)


@contextlib.contextmanager
def _pipeline_beside(broker: Broker) -> Iterator[None]:
    """Keep a pipeline running as a process of its own, where there is to be one, and maintain its tables."""
    settings = broker.settings
    reason = _no_pipeline(settings)
    if reason is not None:
        _log.info("no pipeline beside this broker", reason=reason)
        yield
        return
    supervisor = pipeline_supervisor(settings, broker.doors["flight"], broker.pipeline_token)
    broker.metrics.watch_pipeline(lambda: supervisor.state)
    timeout_seconds = settings.server.shutdown_timeout_ms / 1000
    with contextlib.ExitStack() as children:
        supervisor.start()
        children.callback(supervisor.stop, timeout_seconds)
        _log.info("the pipeline writes its log", file=str(settings.data_dir / LOG_NAME))
        if settings.maintenance.enabled:
            schedule = maintenance_schedule(settings)
            schedule.start()
            children.callback(schedule.stop, timeout_seconds)
        yield


def _no_pipeline(settings: Settings) -> str | None:
    if not settings.pipeline.enabled:
        return "pipeline.enabled is off"
    if settings.server.flight_port < 0:
        return "the Flight door is shut"
    if settings.catalog.type == "memory":
        return "a catalog in memory cannot be shared with another process"
    if find_spec("pyspark") is None or find_spec("pyiceberg") is None:
        return "icestream[pipeline] is not installed"
    return None


class UnfailingStream:
    """Writes to another stream what can be written: a full disk must not take the broker down through its own log."""

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
    """Batches come and go by the megabyte: fresh pages for each cost a busy broker a fifth of its time.

    So the C library keeps what was freed for the next ones, up to a bound. Where there is no glibc, nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 * MIB)
        mallopt(_M_TRIM_THRESHOLD, 256 * MIB)


def spare_what_is_loaded() -> None:
    """Spare it the garbage collector's rounds, as it stays anyway: a full round held publishers up for 90 ms."""
    gc.collect()
    gc.freeze()


def raise_file_limit() -> None:
    """Use as many file descriptors as the system allows: sockets and segments need more than the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
