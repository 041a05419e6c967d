"""Reads batches as they come, and stops when the reader of this command's output has gone: `consume`, `logs`."""

import select
import time
from typing import IO, Any, Protocol

import click
import pyarrow as pa

from icestream.model.errors import DeadlineError, IcestreamError

_CHECK_OUTPUT_SECONDS = 0.5


class BatchSource(Protocol):
    """Where batches come from: a broker's stream, or a table."""

    def poll(self, timeout: float | None = None) -> pa.RecordBatch | None: ...

    @property
    def ended(self) -> bool: ...

    @property
    def interruption(self) -> IcestreamError | None: ...


class OutageNotice:
    """Says on stderr, once each, that the broker (or the catalog) cannot be reached and that it is back."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_away = False

    def update(self, interruption: IcestreamError | None) -> None:
        """Take the source's current `interruption`; None while all is well."""
        if interruption is not None and not self._is_away:
            click.echo(f"{self._what} cannot be reached; waiting for it", err=True)
        elif interruption is None and self._is_away:
            click.echo(f"{self._what} is back", err=True)
        self._is_away = interruption is not None


def next_batch(
    source: BatchSource, output: IO[bytes], notice: OutageNotice, *, follow: bool, timeout: float | None
) -> pa.RecordBatch | None:
    """Return the next batch, or None at the end. Raise BrokenPipeError when nobody reads `output` any more."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _CHECK_OUTPUT_SECONDS if deadline is None else min(_CHECK_OUTPUT_SECONDS, deadline - time.monotonic())
        batch = source.poll(max(0.0, left))
        notice.update(source.interruption)
        if batch is not None:
            return batch
        if source.ended:
            return source.poll(0)  # raises what ended it, if that came after the wait
        if has_no_reader(output):
            raise BrokenPipeError
        if deadline is not None and time.monotonic() >= deadline:
            if follow:
                return None
            raise DeadlineError(f"no message came for {timeout} s", operation="consume")


def has_no_reader(output: Any) -> bool:
    """Return whether the pipe's reader has gone. A write would fail as well, but the next one may be hours away."""
    try:
        poll = select.poll()
        poll.register(output.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):  # not a file of the operating system
        return False
