"""One batch on its way into the log."""

from collections.abc import Callable

from icestream.model.errors import IcestreamError
from icestream.model.frame_bytes import Payload


class Append:
    """A batch, or (without a payload) something to be done by whoever leads, in its place in the queue.

    `callback` is called once, when the batch is durable or refused, by whichever thread led or was told to answer.
    """

    __slots__ = (
        "action",
        "base_offset",
        "callback",
        "duplicate",
        "error",
        "nbytes",
        "payload",
        "publish_time_us",
        "session",
    )

    def __init__(
        self,
        payload: Payload | None,
        callback: "Callable[[Append], None] | None" = None,
        action: Callable[[], None] | None = None,
        *,
        session: int = 0,
    ) -> None:
        self.payload = payload
        self.nbytes = payload.frame_bytes if payload is not None else 0
        self.callback = callback
        self.action = action
        self.session = session
        self.base_offset = -1
        self.publish_time_us = 0
        self.duplicate = False
        self.error: IcestreamError | None = None

    def finish(self, error: IcestreamError | None = None) -> None:
        self.error = error
        if self.callback is not None:
            self.callback(self)
