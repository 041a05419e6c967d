"""Runs a pipeline as a child process of the broker, and starts it again when it dies.

Guarantees: one child at a time; the next child starts after a pause, which grows while children die young; the output
of all children is in one log file of bounded size, with the file before it; no child outlives the broker, because it
stops when its stdin ends, and its JVM and workers with it.
"""

import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

import structlog

from icestream.client import Backoff, BrokerEndpoint
from icestream.config import Settings
from icestream.model.callers import TOKEN_VARIABLE
from icestream.pipeline.child_process import BoundedLog, Child, ChildState, encode_settings

LOG_NAME = "pipeline.log"
_LIMIT_SECONDS = 60.0
_LONG_LIFE_SECONDS = 60.0
"""After a child that lived this long, the next one starts after the shortest pause."""
_log = structlog.get_logger(__name__)


def pipeline_supervisor(settings: Settings, broker: BrokerEndpoint) -> "Supervisor":
    """Return a supervisor that keeps `icestream pipeline` running for a broker.

    The child gets the token by its environment: all users of the machine could read it on a command line.
    """
    return Supervisor(
        [sys.executable, "-m", "icestream.cli", "pipeline", "--child", "--broker", broker.url],
        encode_settings(settings),
        settings.data_dir / LOG_NAME,
        log_max_bytes=settings.pipeline.log_max_bytes,
        restart_seconds=settings.pipeline.restart_interval_ms / 1000,
        environ={TOKEN_VARIABLE: broker.token} if broker.token is not None else {},
    )


class Supervisor(threading.Thread):
    """Keeps a command running from `start` to `stop`. Each child gets `greeting` on its stdin.

    `environ` is added to this process's environment.
    """

    def __init__(
        self,
        command: Sequence[str],
        greeting: bytes,
        log_file: Path,
        *,
        log_max_bytes: int,
        restart_seconds: float,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name="pipeline-supervisor", daemon=True)
        self._command = list(command)
        self._output = BoundedLog(log_file, log_max_bytes)
        self._child = Child("pipeline", greeting, self._output, environ)
        self._backoff = Backoff(restart_seconds, max(restart_seconds, _LIMIT_SECONDS))
        self._stopping = threading.Event()

    @property
    def state(self) -> ChildState:
        return self._child.state

    def run(self) -> None:
        while not self._stopping.is_set():
            began = monotonic()
            exit_code = self._child.run(self._command)
            if self._stopping.is_set():
                return
            if monotonic() - began >= _LONG_LIFE_SECONDS:
                self._backoff.reset()
            pause = self._backoff.next()
            _log.warning("pipeline_exited", exit_code=exit_code, restart_in_ms=round(pause * 1000))
            self._stopping.wait(pause)

    def stop(self, timeout_seconds: float) -> None:
        """Ask the child to finish its pass. Kill it after the time-out."""
        self._stopping.set()
        self._child.stop(timeout_seconds)
        if self.is_alive():
            self.join()
        self._output.close()
