"""Batches on their way from doors into logs, up to the acknowledgement that was asked for."""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from icestream.config import ServerSettings
from icestream.model.enums import AckLevel
from icestream.model.errors import ClosedError, IcestreamError, OverloadedError
from icestream.model.lone_message import SingleMessage
from icestream.storage.disk import Disk
from icestream.storage.table_watch import TableWatch
from icestream.storage.topic import Committed, Topic
from icestream.wal import Append, Payload

# --------------------
# Bytes that were received and not yet answered, bounded over all doors.


class ByteBudget:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._empty = threading.Condition(self._lock)
        self.used_bytes = 0

    def take(self, nbytes: int) -> None:
        with self._lock:
            if self.used_bytes + nbytes > self._max_bytes:
                raise OverloadedError(
                    f"{self.used_bytes} bytes wait for their acknowledgement, {nbytes} more exceed {self._max_bytes}",
                    operation="publish",
                    remedy="wait for acknowledgements and send again, or raise server.max_in_flight_bytes",
                )
            self.used_bytes += nbytes

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self.used_bytes -= nbytes
            if not self.used_bytes:
                self._empty.notify_all()

    def wait_until_empty(self, timeout_seconds: float) -> bool:
        """Wait until everything received is answered; False when the time was up before."""
        with self._lock:
            return self._empty.wait_for(lambda: not self.used_bytes, timeout_seconds)


Answer = Callable[[Append], None]


class Part(NamedTuple):
    """What one producer sent, alone or with others. `answer` is called once, whatever happens."""

    batch: pa.RecordBatch | SingleMessage
    producer: str
    sequence: int
    session: int
    answer: Answer


class Publishing:
    def __init__(self, limits: ServerSettings, budget: ByteBudget, disk: Disk, table_watch: TableWatch) -> None:
        self._limits = limits
        self._budget = budget
        self._disk = disk
        self._table_watch = table_watch

    def publish(self, topic: Topic, part: Part, *, level: AckLevel, inline: bool) -> Append:
        """See `IcebergStorage.publish`."""
        payload, finished = self._prepare(topic, part, level)
        try:
            append = topic.log.submit(payload, finished, inline=inline, session=part.session)
        except BaseException as error:
            self._budget.give_back(payload.frame_bytes)
            if isinstance(error, ClosedError):
                raise topic.gone() from error
            raise
        if level is AckLevel.MEMORY:
            append.notify(part.answer)
        return append

    def publish_all(self, topic: Topic, parts: Sequence[Part], *, level: AckLevel, inline: bool) -> None:
        """Publish batches that came together, so that one commit serves them all; each is answered for itself."""
        prepared: list[Append] = []
        for part in parts:
            try:
                if level is AckLevel.MEMORY:
                    self.publish(topic, part, level=level, inline=False)
                else:
                    prepared.append(Append(*self._prepare(topic, part, level), session=part.session))
            except IcestreamError as error:
                Append(None, part.answer).finish(error)
        if prepared:
            self._submit_all(topic, prepared, inline=inline)

    def _submit_all(self, topic: Topic, appends: list[Append], *, inline: bool) -> None:
        try:
            topic.log.submit_all(appends, inline=inline)
        except IcestreamError as error:
            reason = topic.gone() if isinstance(error, ClosedError) else error
            for append in appends:
                append.finish(reason)

    def publish_and_wait(
        self,
        topic: Topic,
        level: AckLevel,
        batch: pa.RecordBatch | SingleMessage,
        producer: str,
        sequence: int,
        session: int,
    ) -> Append:
        answered = threading.Event()
        part = Part(batch, producer, sequence, session, lambda _: answered.set())
        append = self.publish(topic, part, level=level, inline=True)
        answered.wait()
        if append.error is not None:
            raise append.error
        return append

    def _prepare(self, topic: Topic, part: Part, level: AckLevel) -> tuple[Payload, Answer]:
        """The batch checked and ready for the log, its bytes counted; and what to do when it is durable or refused."""
        limits, budget, batch, answer = self._limits, self._budget, part.batch, part.answer
        if level is AckLevel.TABLE:
            topic.record.check_ack(level)
        payload = topic.payload(
            batch,
            part.producer,
            part.sequence,
            max_message_bytes=limits.max_message_bytes,
            max_batch_bytes=limits.max_batch_bytes,
        )
        nbytes = payload.frame_bytes
        self._disk.take(nbytes)
        budget.take(nbytes)

        def finished(append: Append) -> None:
            budget.give_back(nbytes)
            if level is AckLevel.MEMORY:
                return
            if level is AckLevel.TABLE and append.error is None:
                self._answer_from_table(topic, append, batch.num_rows, answer)
            else:
                answer(append)

        return payload, finished

    def _answer_from_table(self, topic: Topic, append: Append, count: int, answer: Answer) -> None:
        def committed(result: Committed | IcestreamError) -> None:
            if isinstance(result, IcestreamError):
                append.error = result
            answer(append)

        try:
            self._table_watch.when_committed(topic, append.base_offset + count, committed)
        except IcestreamError as error:
            committed(error)
