"""Leader and followers: many threads share one write and one sync.

A thread that appends puts its batch in the queue. If no thread is committing, it becomes the leader and commits its
batch at once, so a lone writer pays no thread hand-over. A thread that finds a leader leaves its batch in the queue and
goes on; its callback is called later. No thread is woken without work. A leader that is done hands the queue, if it is
not empty, to a pool: there one thread commits all queued batches while another calls the callbacks of the group before.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from icestream.model.errors import IcestreamError
from icestream.model.frames import Payload
from icestream.wal.disk_errors import SafeLogger

_log = SafeLogger(__name__)


class Append:
    """A queued batch or, without a payload, a queued action that the leader runs.

    `callback` is called once, when the batch is durable or refused, by any thread.
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
            try:  # as `notify`, without its call: this is on the path of every acknowledgement
                self.callback(self)
            except Exception:  # noqa: BLE001 - see `notify`
                _log.exception("append_callback_failed", base_offset=self.base_offset)

    def notify(self, callback: "Callable[[Append], None]") -> None:
        """Call another callback. Log an error that it raises: other batches must get their acknowledgement."""
        try:
            callback(self)
        except Exception:  # noqa: BLE001 - an error in a callback must not stop the log
            _log.exception("append_callback_failed", base_offset=self.base_offset)


class Pool(Protocol):
    def submit(self, work: Callable[[], None], /) -> object:
        """Run the work soon, in another thread."""


class CommitPool:
    """Threads that commit. It makes no futures: those cost more than the commit of a small message."""

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
            raise RuntimeError("the pool is closed")
        self._work.put(work)

    def close(self) -> None:
        """Finish the submitted work, then stop the threads."""
        self._closed = True
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:  # noqa: BLE001 - an error of one log must not stop the others
                _log.exception("commit_pool_work_failed")


class GroupCommit:
    """`commit` makes a group durable. If it raises, `failed` returns the error for all queued batches."""

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
        self._notifying = False

    def add(self, append: Append, admit: Callable[[Append], None], *, inline: bool) -> None:
        """Queue an append. `admit` is called first, under the mutex; it raises to refuse the append.

        With `inline`, the calling thread commits the append if no other thread is committing.
        """
        with self.mutex:
            admit(append)
            leads = not self._leading
            self._leading = True
            if not (leads and inline):
                self._queue.append(append)
        if leads:
            self._begin([append] if inline else None)

    def add_all(self, appends: Sequence[Append], admit: Callable[[Append], None], *, inline: bool) -> None:
        """Queue several appends as one group if they fit into one. Those that `admit` refuses finish with its error."""
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
            self._begin(self._take_group() if inline else None)

    def _begin(self, group: list[Append] | None) -> None:
        """Lead, beginning with a group in this thread, or in the pool with what is queued."""
        if group is not None or self._pool is None:
            self._lead(group)
        else:
            self._pool.submit(self._lead)

    def _lead(self, group: list[Append] | None = None) -> None:
        """Commit a group, hand the queue over or stop leading if it is empty, and call the callbacks."""
        while True:
            group = group or self._take_group()
            try:
                self._commit(group)
            except Exception as error:  # noqa: BLE001 - every append must get an outcome, whatever the error is
                self._refuse_all(group, error)
                self._notify()
                return
            with self.mutex:
                self._done.append((group, None))
                queued = self._leading = bool(self._queue)
            if queued and self._pool is not None:
                self._pool.submit(self._lead)
            self._notify()
            if not queued or self._pool is not None:
                return
            group = None

    def _notify(self) -> None:
        """Call the callbacks of finished groups, in the groups' order, unless another thread is doing so."""
        with self.mutex:
            if self._notifying or not self._done:
                return
            self._notifying = True
            group, refusal = self._done.popleft()
        while True:
            for append in group:
                append.finish(refusal)
            with self.mutex:
                if not self._done:
                    self._notifying = False
                    return
                group, refusal = self._done.popleft()

    def _take_group(self) -> list[Append]:
        """Take as many queued batches as one commit may write, at least one. An action is a group of its own."""
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
