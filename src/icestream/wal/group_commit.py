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

from icestream.model.errors import IcestreamError
from icestream.wal.append import Append
from icestream.wal.commit_pool import Pool


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
