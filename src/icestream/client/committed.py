"""Waiting until a message is in its topic's table."""

import time
from typing import NamedTuple

from icestream.client.connection import Connection
from icestream.model.errors import DeadlineError, UnavailableError

_ASK_SECONDS = 5.0
_RETRY_SECONDS = 0.2


class CommittedSnapshot(NamedTuple):
    """A state of the table that holds the message."""

    snapshot_id: int
    committed_offset: int
    """All messages below it are in the snapshot."""


def wait_committed(
    connection: Connection, topic: str, offset: int, timeout: float | None, *, hurry: bool = True
) -> CommittedSnapshot:
    """Ask the broker until it says so. A broker that is away meanwhile is asked again when it is back.

    In a hurry the pipeline is told not to let the message wait for others to be written with it.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _ASK_SECONDS if deadline is None else min(_ASK_SECONDS, deadline - time.monotonic())
        fields = {"topic": topic, "offset": offset, "wait_ms": max(0, int(left * 1000))}
        if not hurry:
            fields["hurry"] = False
        try:
            answer = connection.action("wait_committed", fields)
        except UnavailableError:
            if deadline is None or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
            continue
        if answer["committed"]:
            return CommittedSnapshot(answer["snapshot_id"], answer["committed_offset"])
        if deadline is not None and time.monotonic() >= deadline:
            raise DeadlineError(
                f"the table reaches to {answer['committed_offset']} and not over {offset} after {timeout:.3g} s",
                operation="wait for the table",
                place=topic,
                remedy="look at `icestream stats` for what the pipeline says",
            )
