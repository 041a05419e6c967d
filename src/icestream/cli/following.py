"""Batches as they come, for as long as anybody reads what is made of them."""

import select
import time
from typing import IO, Any, Protocol

import click
import pyarrow as pa

from icestream.model.errors import DeadlineError, IcestreamError

# --------------------
# Says on stderr when the broker (or the catalog) of a command that follows is away, and when it is back; once each.


class Presence:
    def __init__(self, what: str) -> None:
        self._what = what
        self._is_away = False

    def note(self, interruption: IcestreamError | None) -> None:
        """Why nothing comes at the moment, or None while all is well."""
        if interruption is not None and not self._is_away:
            click.echo(f"{self._what} is away; waiting for it", err=True)
        elif interruption is None and self._is_away:
            click.echo(f"{self._what} is back", err=True)
        self._is_away = interruption is not None


_LOOK_AT_READER_S = 0.5


class Source(Protocol):
    """What messages are written from: a broker's stream, or a table."""

    def poll(self, timeout: float | None = None) -> pa.RecordBatch | None: ...

    @property
    def ended(self) -> bool: ...

    @property
    def interruption(self) -> IcestreamError | None: ...


def next_batch(
    source: Source, output: IO[bytes], presence: Presence, *, follow: bool, timeout: float | None
) -> pa.RecordBatch | None:
    """The next batch, or None when it is time to end. While it waits, it looks whether anyone still reads."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _LOOK_AT_READER_S if deadline is None else min(_LOOK_AT_READER_S, deadline - time.monotonic())
        batch = source.poll(max(0.0, left))
        presence.note(source.interruption)
        if batch is not None:
            return batch
        if source.ended:
            return source.poll(0)  # raises what ended it, if that came after the wait
        if is_abandoned(output):
            raise BrokenPipeError
        if deadline is not None and time.monotonic() >= deadline:
            if follow:
                return None
            raise DeadlineError(f"nothing came for {timeout} s", operation="consume")


def is_abandoned(output: Any) -> bool:
    """Whether the pipe's reader has gone; a write would tell too, but there may be nothing to write for hours."""
    try:
        poll = select.poll()
        poll.register(output.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):  # not a file of the operating system
        return False
