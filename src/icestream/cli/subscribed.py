"""`icestream consume --subscription`: messages to stdout, acknowledged once they are written."""

import time
from collections.abc import Callable
from typing import IO

import pyarrow as pa

from icestream.cli.presence import Presence
from icestream.cli.rows import Render
from icestream.client import Client, Subscription
from icestream.model.errors import DeadlineError

_QUEUE = 10_000
_FIRST_LOOK_S = 0.05
_LOOK_S = 0.5


def consume_subscription(
    client: Client,
    subscription: Subscription,
    render: Render,
    output: IO[bytes],
    presence: Presence,
    *,
    follow: bool,
    max_messages: int | None,
    timeout: float | None,
    is_abandoned: Callable[[], bool],
) -> None:
    """Write and acknowledge until there is no more to do.

    Without `follow` that is when the subscription has caught up with what is durable now; what other consumers hold,
    and what was refused and comes again later, is not waited for.
    """
    end = None if follow else client.describe_topic(subscription.topic).durable_end
    left = max_messages
    last = time.monotonic()
    look_s = _FIRST_LOOK_S
    while left is None or left > 0:
        batch = subscription.receive_batch(_QUEUE if left is None else min(left, _QUEUE), look_s)
        presence.note(subscription.interruption)
        if batch is not None:
            output.write(render(_without_count(batch)))
            output.flush()
            subscription.ack(batch)
            left = None if left is None else left - batch.num_rows
            last, look_s = time.monotonic(), _FIRST_LOOK_S
            continue
        look_s = _LOOK_S
        if is_abandoned():
            raise BrokenPipeError
        if end is not None and _has_caught_up(client, subscription, end):
            return
        if timeout is not None and time.monotonic() - last >= timeout:
            if follow:
                return
            raise DeadlineError(f"nothing came for {timeout} s", operation="consume")
    subscription.flush()  # says so if what was written would come again


def queue_for(max_messages: int | None) -> int:
    """How many messages to have sent ahead: no more than are wanted, because others could have them."""
    return _QUEUE if max_messages is None else min(max_messages, _QUEUE)


def _has_caught_up(client: Client, subscription: Subscription, end: int) -> bool:
    subscription.flush()
    found = client.describe_subscription(subscription.topic, subscription.name)
    if found.floor_offset >= end:
        return True
    # What is left is with others, or is to come again later.
    return found.read_offset >= end and (len(found.consumers) > 1 or not found.unacknowledged)


def _without_count(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that a reader gets: the last one counts redeliveries."""
    return batch.select(batch.schema.names[:-1])
