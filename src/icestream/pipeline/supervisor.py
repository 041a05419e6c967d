"""A pipeline as a child of the broker: started, watched, started again when it dies, and never left behind.

What it guarantees: one child at a time; a child that dies is followed by another, after a pause that grows while they
keep dying young; all that children say is in one log file of bounded size, with the one before beside it; and no child
outlives the broker, however that ends, because it stops when its stdin does, and its JVM and workers with it.
"""

import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

import structlog

from icestream.client.connection import Backoff
from icestream.config import Settings
from icestream.model.callers import TOKEN_VARIABLE
from icestream.pipeline.child_process import BoundedLog, Child, ChildState, encode_settings

LOG_NAME = "pipeline.log"
_LIMIT_SECONDS = 60.0
_LONG_LIFE_SECONDS = 60.0
"""A child that lived so long is followed by the next after the shortest pause."""
_log = structlog.get_logger(__name__)


def pipeline_supervisor(settings: Settings, broker: str, token: str | None = None) -> "Supervisor":
    """Keeps `icestream pipeline` running for the broker at an address, once it is started.

    A token goes to the child by its environment: on a command line all users of the machine could read it.
    """
    return Supervisor(
        [sys.executable, "-m", "icestream.cli", "pipeline", "--child", "--broker", broker],
        encode_settings(settings),
        settings.data_dir / LOG_NAME,
        log_max_bytes=settings.pipeline.log_max_bytes,
        restart_seconds=settings.pipeline.restart_interval_ms / 1000,
        environ={TOKEN_VARIABLE: token} if token is not None else {},
    )


class Supervisor(threading.Thread):
    """A command kept running from `start` to `stop`; `greeting` is what each child finds on its stdin.

    `environ` is what it has in its environment besides what this process has.
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
            _log.warning("the pipeline ended", exit_code=exit_code, again_in_seconds=round(pause, 1))
            self._stopping.wait(pause)

    def stop(self, timeout_seconds: float) -> None:
        """Ask the child to finish its pass; one that does not in time is killed."""
        self._stopping.set()
        self._child.stop(timeout_seconds)
        if self.is_alive():
            self.join()
        self._output.close()
