"""Log lines that never stand in the way: a full disk may keep them from being written, but nobody from going on."""

import contextlib
from typing import Any

import structlog


class Teller:
    def __init__(self, name: str) -> None:
        self._log = structlog.get_logger(name)

    def info(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(OSError):
            self._log.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(OSError):
            self._log.warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(OSError):
            self._log.error(event, **fields)
