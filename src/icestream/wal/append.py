"""One batch on its way into the log."""

import threading
from collections.abc import Callable

from icestream.model.errors import IcestreamError
from icestream.wal.frame import Payload


class Append:
    """A batch, or (without a payload) something to be done by whoever leads, in its place in the queue.

    Whoever made it inline sleeps until it is woken: because it is done, or to take over the lead.
    """

    __slots__ = (
        "_wake",
        "action",
        "base_offset",
        "callback",
        "done",
        "duplicate",
        "error",
        "inline",
        "nbytes",
        "payload",
        "publish_time_us",
    )

    def __init__(
        self,
        payload: Payload | None,
        *,
        inline: bool,
        callback: "Callable[[Append], None] | None" = None,
        action: Callable[[], None] | None = None,
    ) -> None:
        self.payload = payload
        self.nbytes = payload.frame_bytes if payload is not None else 0
        self.inline = inline
        self.callback = callback
        self.action = action
        self.base_offset = -1
        self.publish_time_us = 0
        self.duplicate = False
        self.error: IcestreamError | None = None
        self.done = False
        self._wake = threading.Lock()
        self._wake.acquire()

    def wake(self) -> None:
        self._wake.release()

    def sleep(self) -> None:
        self._wake.acquire()

    def finish(self, error: IcestreamError | None = None) -> None:
        self.error = error
        self.done = True
        if self.callback is not None:
            self.callback(self)
        if self.inline:
            self.wake()
