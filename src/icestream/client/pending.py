"""A batch on its way to the broker, shared by the receipts of all its messages."""

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from icestream.model.errors import IcestreamError
from icestream.model.messages import message_batch
from icestream.model.single import MAX_SINGLE_BYTES, encode_message


class PendingBatch:
    """Messages that are sent, acknowledged and failed together.

    Columns of Python values while it is open; one Arrow batch once it is written. What is said here about locking is
    kept by the callers: `lock` guards every field until `done`, and nothing changes after.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "callbacks",
        "count",
        "done",
        "error",
        "gate",
        "keys",
        "lock",
        "loop_waiter",
        "nbytes",
        "owner",
        "payloads",
        "publish_time_us",
        "record",
        "seen",
        "sequence",
        "snapshot_id",
        "writes",
    )

    def __init__(self, lock: threading.Lock, owner: Any, record: pa.RecordBatch | None = None, nbytes: int = 0) -> None:
        self.lock = lock
        self.owner = owner
        self.record = record
        self.payloads: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.attributes: list[Any] | None = None
        self.count: int = 0 if record is None else record.num_rows
        self.nbytes = nbytes
        self.sequence: int | None = None
        self.writes = 0
        self.base_offset = -1
        self.publish_time_us = 0
        self.snapshot_id: int | None = None
        self.error: IcestreamError | None = None
        self.done = False
        self.seen = False
        self.gate: threading.Lock | None = None
        self.callbacks: list[Callable[[], None]] | None = None
        self.loop_waiter: Any = None

    def append(self, payload: bytes, key: bytes | None, attributes: Any, size: int) -> int:
        """The message's place in the batch. Columns for keys and attributes exist once a message has one."""
        index = self.count
        self.payloads.append(payload)
        if key is not None or self.keys is not None:
            if self.keys is None:
                self.keys = [None] * index
            self.keys.append(key)
        if attributes is not None or self.attributes is not None:
            if self.attributes is None:
                self.attributes = [None] * index
            self.attributes.append(attributes)
        self.count = index + 1
        self.nbytes += size
        return index

    @property
    def is_lone_message(self) -> bool:
        """Whether it is one small message in Python values, which need not become Arrow to be sent."""
        return self.count == 1 and self.record is None and self.nbytes <= MAX_SINGLE_BYTES

    def lone_body(self) -> bytes:
        """The body of a lone message. With the lock held."""
        key = self.keys[0] if self.keys is not None else None
        return encode_message(self.payloads[0], key, self.attributes[0] if self.attributes is not None else None)

    def arrow(self) -> pa.RecordBatch:
        """The batch as Arrow, made once; the Python values are let go."""
        if self.record is None:
            self.record = message_batch(self.payloads, self.keys, self.attributes)
            self.payloads = []
            self.keys = self.attributes = None
        return self.record

    def succeed(self, base_offset: int, publish_time_us: int, snapshot_id: int | None) -> None:
        """Lock held; `announce` must follow when it is not."""
        self.base_offset = base_offset
        self.publish_time_us = publish_time_us
        self.snapshot_id = snapshot_id
        self.record = None
        self.keys = self.attributes = None
        self.payloads = []
        self.done = True

    def fail(self, error: IcestreamError) -> None:
        """Lock held; `announce` must follow when it is not."""
        self.error = error
        self.record = None
        # The payloads go last: a thread in `arrow` must not meet none of them beside the keys of all.
        self.keys = self.attributes = None
        self.payloads = []
        self.done = True

    def announce(self) -> None:
        """Let the waiting threads go and run the callbacks. Without the lock: callbacks are other people's code."""
        if self.gate is not None:
            self.gate.release()
        for callback in self.callbacks or ():
            callback()
        self.callbacks = None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait; whether the batch is done.

        The gate is a lock that each waiting thread opens for the next: cheaper than an Event, and made only when
        somebody really has to wait.
        """
        with self.lock:
            if self.done:
                return True
            gate = self.gate
            if gate is None:
                gate = self.gate = threading.Lock()
                gate.acquire()
        if not gate.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return False
        gate.release()
        return True

    def when_done(self, callback: Callable[[], None]) -> None:
        """Run `callback` once, now or in the thread that completes the batch."""
        with self.lock:
            if not self.done:
                if self.callbacks is None:
                    self.callbacks = []
                self.callbacks.append(callback)
                return
        callback()
