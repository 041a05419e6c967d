"""Leader and followers: many threads share one write and one sync.

A thread that appends puts its batch in the queue. If nobody is writing it becomes the leader and commits its batch at
once, so a lone writer pays no thread hand-over. Threads that find a leader at work leave their batch in the queue and
go on; they are answered by callback, and nobody is woken who has nothing to do. A leader whose group is done hands the
queue, if there is one by then, to a pool: there one thread commits all that has queued up, while another answers those
whose group was before.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from icestream.model.errors import IcestreamError
from icestream.model.frame_bytes import Payload
from icestream.wal.disk_errors import SafeLogger

_log = SafeLogger(__name__)


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
        """Set the outcome and call the callback."""
        self.error = error
        if self.callback is not None:
            self.notify(self.callback)

    def notify(self, callback: "Callable[[Append], None]") -> None:
        """Call a callback. Log an error that it raises: it must not keep other batches from their acknowledgement."""
        try:
            callback(self)
        except Exception:  # noqa: BLE001 - whatever a callback does wrong, the log goes on
            _log.exception("append_callback_failed", base_offset=self.base_offset)


class Pool(Protocol):
    def submit(self, work: Callable[[], None], /) -> object:
        """Have it done soon, by another thread."""


class CommitPool:
    """Unlike an executor it makes no futures, which cost more than a small message's commit: nobody looks at them."""

    def __init__(self, threads: int) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"commit-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None], /) -> None:
        if self._closed:
            raise RuntimeError("the pool is closed")  # rather than never be done
        self._work.put(work)

    def close(self) -> None:
        """Finish what was submitted."""
        self._closed = True
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:  # noqa: BLE001 - one log's trouble is not the others'
                _log.exception("commit_pool_work_failed")


class GroupCommit:
    """`commit` makes a group durable; when it raises, `failed` names the error for all that were queued."""

    def __init__(
        self,
        *,
        commit: Callable[[list[Append]], None],
        failed: Callable[[Exception], IcestreamError],
        max_group_bytes: int,
        pool: Pool | None,
    ) -> None:
        self.mutex = threading.Lock()
        self._commit = commit
        self._failed = failed
        self._max_group_bytes = max_group_bytes
        self._pool = pool
        self._queue: deque[Append] = deque()
        self._leading = False
        self._done: deque[tuple[list[Append], IcestreamError | None]] = deque()
        self._answering = False

    def add(self, append: Append, admit: Callable[[Append], None], *, inline: bool) -> None:
        """Queue an append once `admit`, called under the mutex, has agreed to it by not raising.

        Inline, the calling thread commits it if nobody else is committing.
        """
        with self.mutex:
            admit(append)
            self._queue.append(append)
            if self._leading:
                return
            self._leading = True
        self._begin(inline=inline)

    def add_all(self, appends: Sequence[Append], admit: Callable[[Append], None], *, inline: bool) -> None:
        """Queue several as one group, if they fit into one; those that `admit` refuses are answered so."""
        refused: list[tuple[Append, IcestreamError]] = []
        with self.mutex:
            for append in appends:
                try:
                    admit(append)
                except IcestreamError as error:
                    refused.append((append, error))
                else:
                    self._queue.append(append)
            leads = bool(self._queue) and not self._leading
            self._leading |= leads
        for append, refusal in refused:
            append.finish(refusal)
        if leads:
            self._begin(inline=inline)

    def _begin(self, *, inline: bool) -> None:
        if inline or self._pool is None:
            self._lead()
        else:
            self._pool.submit(self._lead)

    def _lead(self) -> None:
        """Commit a group, hand the queue over (or stop leading when it is empty), and answer."""
        while True:
            group = self._take_group()
            try:
                self._commit(group)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody may be left waiting
                self._refuse_all(group, error)
                self._answer()
                return
            with self.mutex:
                self._done.append((group, None))
                queued = self._leading = bool(self._queue)
            if queued and self._pool is not None:
                self._pool.submit(self._lead)
            self._answer()
            if not queued or self._pool is not None:
                return

    def _answer(self) -> None:
        """Answer what is done, group after group in their order; not if somebody is at it already."""
        while True:
            with self.mutex:
                if self._answering or not self._done:
                    return
                self._answering = True
                group, refusal = self._done.popleft()
            for append in group:
                append.finish(refusal)
            with self.mutex:
                self._answering = False

    def _take_group(self) -> list[Append]:
        """As many queued batches as one commit may write, and at least one; an action stands alone."""
        with self.mutex:
            queue = self._queue
            group = [queue.popleft()]
            room = self._max_group_bytes - group[0].nbytes
            while group[0].action is None and queue and queue[0].action is None:
                room -= queue[0].nbytes
                if room < 0:
                    break
                group.append(queue.popleft())
            return group

    def _refuse_all(self, group: list[Append], error: Exception) -> None:
        with self.mutex:
            refusal = self._failed(error)
            self._leading = False
            self._done.append(([*group, *self._queue], refusal))
            self._queue.clear()
