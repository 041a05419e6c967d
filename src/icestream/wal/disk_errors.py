"""Errors of the disk: which one means that it is full, the typed error for each, and logging that survives both."""

import contextlib
import errno
from typing import Any

import structlog

from icestream.model.errors import DiskFullError, LogUnavailableError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL


def log_unavailable(reason: str, cause: BaseException | None, *, operation: str, place: str) -> LogUnavailableError:
    """Return the error for a log that cannot be written or opened because of an error of the disk."""
    if is_full(cause):
        remedy = "nothing was stored; make room on the disk and send again"
        return DiskFullError(f"{reason}: {cause}", operation=operation, place=place, remedy=remedy)
    return LogUnavailableError(
        f"{reason}: {cause}", operation=operation, place=place, remedy="nothing was acknowledged; send again"
    )


class SafeLogger:
    """A structlog logger that ignores `OSError`: a log line that a full disk refuses must not stop the broker."""

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

    def exception(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(OSError):
            self._log.exception(event, **fields)
