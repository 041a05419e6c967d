"""Waiting for new messages without holding a thread."""

import asyncio
import contextlib

from starlette.requests import Request

from icestream.wal import Log, LogState


async def wait_past(log: Log, offset: int, seconds: float, *, request: Request, closing: asyncio.Event) -> None:
    """Return when the log is durable past an offset or closed, the time is up, the caller is gone, or the door closes.

    The log wakes this from whichever thread commits; nothing is asked at intervals.
    """
    loop, moved = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the door's loop has ended; the commit must not hear of it
            loop.call_soon_threadsafe(moved.set)

    log.listeners.add(wake)
    others = [asyncio.create_task(_gone(request)), asyncio.create_task(closing.wait())]
    try:
        async with asyncio.timeout(seconds):
            while log.durable_end <= offset and log.state is not LogState.CLOSED:
                moved.clear()
                wakes = asyncio.create_task(moved.wait())
                try:
                    await asyncio.wait([wakes, *others], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    wakes.cancel()
                if any(task.done() for task in others):
                    return
    except TimeoutError:
        pass
    finally:
        log.listeners.discard(wake)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _gone(request: Request) -> None:
    """Returns when the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
