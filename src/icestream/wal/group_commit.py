"""Leader and followers: many threads share one write and one sync.

A thread that appends puts its batch in the queue. If nobody is writing it becomes the leader: it commits, in one go,
everything that has queued up, and its own batch with it; so a lone writer pays no thread hand-over, and many share a
sync. Threads that find a leader at work sleep; a leader that is done hands over to the first of them. Batches that
nobody waits for are led by a pool.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from icestream.model.errors import IcestreamError
from icestream.wal.append import Append


class GroupCommit:
    """`commit` makes a group durable; when it raises, `failed` names the error for all that were queued."""

    def __init__(
        self,
        *,
        commit: Callable[[list[Append]], None],
        failed: Callable[[Exception], IcestreamError],
        max_group_bytes: int,
        pool: Executor | None,
    ) -> None:
        self.mutex = threading.Lock()
        self._commit = commit
        self._failed = failed
        self._max_group_bytes = max_group_bytes
        self._pool = pool
        self._queue: deque[Append] = deque()
        self._leading = False

    def add(self, append: Append, admit: Callable[[Append], None]) -> None:
        """Queue an append once `admit`, called under the mutex, has agreed to it by not raising."""
        with self.mutex:
            admit(append)
            self._queue.append(append)
            if self._leading:
                return
            self._leading = True
        self._start_leading(append)

    def wait(self, append: Append) -> None:
        """Sleep until an inline append is done; lead when it is this thread's turn."""
        while True:
            append.sleep()
            if append.done:
                return
            self._lead(append)

    def _start_leading(self, first: Append) -> None:
        """Have the queue committed by the thread that waits for its first, or by the pool; `_leading` is set."""
        if first.inline:
            first.wake()
        elif self._pool is not None:
            self._pool.submit(self._lead, None)
        else:
            self._lead(None)

    def _lead(self, own: Append | None) -> None:
        """Commit group after group, until the queue is empty or (for a waiting thread) its own append is done."""
        while own is None or not own.done:
            with self.mutex:
                group = self._take_group()
                if not group:
                    self._leading = False
                    return
            try:
                self._commit(group)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody may be left sleeping
                self._refuse_all(group, error)
                return
            for append in group:
                append.finish()
        with self.mutex:
            if not self._queue:
                self._leading = False
                return
            following = self._queue[0]
        self._start_leading(following)

    def _take_group(self) -> list[Append]:
        """As many queued batches as one commit may write, and at least one; an action stands alone."""
        queue = self._queue
        if not queue:
            return []
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
            doomed = [*group, *self._queue]
            self._queue.clear()
        for append in doomed:
            append.finish(refusal)
