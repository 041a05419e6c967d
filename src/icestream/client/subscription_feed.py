"""A subscription's batches as they come, read by a thread of their own.

The broker sends no more than it was given credit for, so what waits here is bounded by `receiver_queue` messages and
`max_bytes`; credit goes back as the application takes batches. When the connection breaks, the thread connects again,
as long as it takes. What waited is then forgotten: the broker delivers it again, here or to another consumer.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from icestream.client.backoff import Backoff
from icestream.client.connection import Connection
from icestream.client.subscription_acks import Acks
from icestream.client.subscription_stream import SubscriptionStream
from icestream.model.errors import ClosedError, DeadlineError, IcestreamError, UnavailableError
from icestream.model.messages import JOIN_BYTES

_END_S = 1.0
_JOIN_TIMEOUT_S = 2.0
_PINGS_PER_TIMEOUT = 3


class SubscriptionFeed:
    def __init__(self, connection: Connection, request: dict[str, Any], acks: Acks) -> None:
        self._connection = connection
        self._request = request
        self._acks = acks
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[pa.RecordBatch] = deque()
        self._taken_messages = 0
        self._taken_bytes = 0
        self._stream: SubscriptionStream | None = None
        self._finished = False
        self._error: IcestreamError | None = None
        self._closed = False
        self._listener: Callable[[], None] | None = None
        self.interruption: IcestreamError | None = None
        """Why nothing comes at the moment, while the broker is away and is looked for."""
        self.subscribed: dict[str, Any] | None = None
        """What the broker said when it accepted this consumer; None before."""
        self.on_break: Callable[[], None] = lambda: None
        """Called when deliveries were forgotten, because they come again."""
        self._thread = threading.Thread(target=self._run, name="icestream-subscription", daemon=True)
        self._thread.start()

    # ---- the caller's side

    def wait_subscribed(self, timeout: float) -> dict[str, Any]:
        """Wait until the broker has accepted this consumer; raises why it did not."""
        with self._lock:
            self._changed.wait_for(lambda: self.subscribed or self._finished, timeout)
            if self.subscribed is not None:
                return self.subscribed
            raise self._error or DeadlineError(
                f"no answer from the broker at {self._connection.url} within {timeout} s", operation="subscribe"
            )

    def get(
        self,
        timeout: float | None = None,
        *,
        max_messages: int | None = None,
        check: Callable[[pa.RecordBatch], None] | None = None,
    ) -> pa.RecordBatch | None:
        """The next batch; None after `timeout` seconds or when closed. Raises what ended the subscription.

        A batch for which `check` raises stays.
        """
        with self._lock:
            if not self._waiting:
                self._changed.wait_for(lambda: self._waiting or self._finished or self._closed, timeout)
            if self._waiting and check is not None:
                check(self._waiting[0])
            return self._take(max_messages)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, from the reading thread, whenever `poll` may have something new."""
        self._listener = listener

    @property
    def ended(self) -> bool:
        return self._closed or (self._finished and not self._waiting)

    @property
    def _may_create(self) -> bool:
        """Not the second time: a subscription that is gone was deleted, and would begin elsewhere."""
        return self.subscribed is None and bool(self._request.get("create", True))

    @property
    def connected(self) -> bool:
        return self._stream is not None

    def _take(self, max_messages: int | None) -> pa.RecordBatch | None:
        """The next batch, joined with those behind it while they are small."""
        if self._closed:
            return None
        if not self._waiting:
            if self._error is not None:
                raise self._error
            return None
        batches: list[pa.RecordBatch] = []
        messages = nbytes = 0
        while self._waiting and nbytes < JOIN_BYTES and (max_messages is None or messages < max_messages):
            batch = self._waiting.popleft()
            if max_messages is not None and messages + batch.num_rows > max_messages:
                self._waiting.appendleft(batch.slice(max_messages - messages))
                batch = batch.slice(0, max_messages - messages)
            batches.append(batch)
            messages += batch.num_rows
            nbytes += batch.nbytes
        self._give_back(messages, nbytes)
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    def _give_back(self, messages: int, nbytes: int) -> None:
        """Return credit: when half of it was used, and when there is nothing else to do."""
        self._taken_messages += messages
        self._taken_bytes += nbytes
        much = (
            2 * self._taken_messages >= self._request["max_messages"]
            or 2 * self._taken_bytes >= self._request["max_bytes"]
        )
        if much or not self._waiting:
            self._acks.grant(self._taken_messages, self._taken_bytes, urgent=much)
            self._taken_messages = self._taken_bytes = 0

    def close(self) -> None:
        """End the stream, from any thread; who waits in `get` gets None."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            stream = self._stream
            self._waiting.clear()
            self._changed.notify_all()
        self._notify()
        if stream is not None:
            stream.finish()
            self._join(_END_S)
            stream.cancel()
        self._join(_JOIN_TIMEOUT_S)

    def _join(self, timeout: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    # ---- the reading thread

    def _run(self) -> None:
        backoff = Backoff()
        error: IcestreamError | None = None
        while not self._closed:
            started = time.monotonic()
            try:
                self._read(SubscriptionStream(self._connection, self._request | {"create": self._may_create}))
            except IcestreamError as failure:
                error = failure
            except Exception as failure:  # noqa: BLE001 - who waits for messages is to hear of it
                error = IcestreamError(f"the consumer failed: {failure!r}", operation="subscribe")
            if self._detach():
                self.on_break()
            if self.subscribed is None or not _passes(error):
                break
            self.interruption = error
            if time.monotonic() - started > _END_S:
                backoff.reset()
            with self._lock:
                self._changed.wait_for(lambda: self._closed, backoff.next())
        with self._lock:
            self._finished = True
            self._error = error
            self._changed.notify_all()
        self._notify()

    def _read(self, stream: SubscriptionStream) -> None:
        """Take in what comes, until the stream ends, which raises."""
        with self._lock:
            self._stream = stream
        if self._closed:
            stream.cancel()
        for batch, fields in stream.read():
            if batch is not None:
                self._put(batch)
            elif "flushed" in fields:
                self._acks.flushed(fields["flushed"], fields.get("failure"))
            elif "subscribed" in fields:
                accepted = fields["subscribed"]
                self._acks.attach(stream, accepted["session_timeout_ms"] / 1000 / _PINGS_PER_TIMEOUT)
                with self._lock:
                    self.interruption = None
                    self.subscribed = accepted
                    self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> None:
        with self._lock:
            if not self._closed and batch.num_rows:
                self._waiting.append(batch)
                self._changed.notify()
        self._notify()

    def _detach(self) -> bool:
        """Forget the stream and what came by it."""
        self._acks.detach()
        with self._lock:
            self._stream = None
            self._waiting.clear()
            self._taken_messages = self._taken_bytes = 0
            return not self._closed

    def _notify(self) -> None:
        if self._listener is not None:
            self._listener()


def _passes(error: IcestreamError | None) -> bool:
    """Whether a broker that comes back would heal it. A broker that is stopping says that it is closed."""
    return error is None or error.retryable or isinstance(error, UnavailableError | ClosedError)
