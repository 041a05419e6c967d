"""Telling a full disk from a broken one."""

import errno

from icestream.model.errors import DiskFullError, LogUnavailableError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL


def unusable(reason: str, cause: BaseException | None, *, operation: str, place: str) -> LogUnavailableError:
    """The error for a log that cannot be written, or not be opened, because of an error of the disk."""
    if is_full(cause):
        remedy = "nothing was stored; make room on the disk and send again"
        return DiskFullError(f"{reason}: {cause}", operation=operation, place=place, remedy=remedy)
    return LogUnavailableError(
        f"{reason}: {cause}", operation=operation, place=place, remedy="nothing was acknowledged; send again"
    )
