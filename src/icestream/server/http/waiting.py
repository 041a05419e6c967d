"""Waiting for new messages without holding a thread."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias

from starlette.requests import Request

from icestream.wal import Log, LogState

Ends: TypeAlias = Sequence["asyncio.Future[Any]"]
"""What ends all waiting once one of them is done."""


@contextlib.asynccontextmanager
async def ends_of(request: Request, closing: asyncio.Event) -> AsyncIterator[Ends]:
    """The caller hangs up (the first of them), or the door closes. The request's body must have been read."""
    ends = [asyncio.create_task(_gone(request)), asyncio.create_task(_set(closing))]
    try:
        yield ends
    finally:
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)


async def wait_past(log: Log, offset: int, seconds: float, *, ends: Ends) -> None:
    """Return when the log is durable past an offset or closed, the time is up, or one of the ends is reached.

    The log wakes this from whichever thread commits; nothing is asked at intervals.
    """
    loop, moved = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the door's loop has ended; the commit must not hear of it
            loop.call_soon_threadsafe(moved.set)

    log.listeners.add(wake)
    try:
        async with asyncio.timeout(seconds):
            while log.durable_end <= offset and log.state is not LogState.CLOSED:
                await wait_for(moved, ends)
                if any(end.done() for end in ends):
                    return
    except TimeoutError:
        pass
    finally:
        log.listeners.discard(wake)


async def wait_for(event: asyncio.Event, ends: Ends, seconds: float | None = None) -> None:
    """Return when the event is set, which is then cleared, or one of the ends is reached, or the time is up."""
    wakes = asyncio.create_task(_set(event))
    try:
        await asyncio.wait([wakes, *ends], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        wakes.cancel()
    event.clear()


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _gone(request: Request) -> None:
    """Returns when the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
