"""Calls to a broker that may be started again meanwhile: that costs only time."""

import time
from collections.abc import Callable
from typing import TypeVar

from icestream.model.errors import UnavailableError

Answer = TypeVar("Answer")

RETRY_SECONDS = 300.0
"""How long a broker may be away before the migration ends, to be gone on with later."""
_PAUSE_SECONDS = 0.2


def with_retries(ask: Callable[[], Answer]) -> Answer:
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return ask()
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
