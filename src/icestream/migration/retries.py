"""Retries calls to a broker that is unreachable or restarted."""

import time
from collections.abc import Callable
from typing import TypeVar

from icestream.model.errors import UnavailableError

Result = TypeVar("Result")

RETRY_SECONDS = 300.0
"""How long a broker may be unreachable before the migration fails. It can be run again."""
_PAUSE_SECONDS = 0.2


def with_retries(ask: Callable[[], Result]) -> Result:
    """Return what `ask` returns. Call it again while the broker is unreachable."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return ask()
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
