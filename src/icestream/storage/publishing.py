"""Publishing: from a door into a topic's log, up to the acknowledgement."""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa
import structlog

from icestream.config import ServerSettings
from icestream.model.enums import AckLevel
from icestream.model.errors import ClosedError, IcestreamError, OverloadedError
from icestream.model.messages import LoneMessage
from icestream.storage.disk import Disk
from icestream.storage.table_watch import TableWatch
from icestream.storage.topic import TableProgress, Topic
from icestream.wal import Append, Payload

_log = structlog.get_logger(__name__)


class ByteBudget:
    """Bounds the bytes that were received and are not acknowledged yet, over all doors."""

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
        """Wait until everything received is acknowledged; return False when the time is up before."""
        with self._lock:
            return self._empty.wait_for(lambda: not self.used_bytes, timeout_seconds)


OnAck = Callable[[Append], None]


class PublishItem(NamedTuple):
    """One producer's batch. `on_ack` is called once: when the batch is at its level, or was refused."""

    batch: pa.RecordBatch | LoneMessage
    on_ack: OnAck
    producer: str = ""
    sequence: int = 0
    session: int = 0


class Publishing:
    """Check batches, hand them to the topics' logs, and acknowledge them. Doors call it; see `IcebergStorage.publish`.

    A batch counts in the budget from `submit` until it is durable or refused.
    """

    def __init__(self, limits: ServerSettings, budget: ByteBudget, disk: Disk, table_watch: TableWatch) -> None:
        self._limits = limits
        self._budget = budget
        self._disk = disk
        self._table_watch = table_watch

    def submit(self, topic: Topic, item: PublishItem, *, level: AckLevel, inline: bool) -> Append:
        """Check a batch and queue it for the topic's log.

        Inline, the calling thread makes it durable itself if no other thread is committing. An error means that nothing
        was stored, and that `on_ack` is not called.
        """
        payload, finished = self._prepare(topic, item, level)
        try:
            append = topic.log.submit(payload, finished, inline=inline, session=item.session)
        except BaseException as error:
            self._budget.give_back(payload.frame_bytes)
            if isinstance(error, ClosedError):
                raise topic.gone_error() from error
            raise
        if level is AckLevel.MEMORY:
            append.notify(item.on_ack)
        return append

    def submit_all(self, topic: Topic, items: Sequence[PublishItem], *, level: AckLevel, inline: bool) -> None:
        """Submit batches that came in one request. One commit serves them all; each has its own acknowledgement."""
        prepared: list[Append] = []
        for item in items:
            try:
                if level is AckLevel.MEMORY:
                    self.submit(topic, item, level=level, inline=False)
                else:
                    prepared.append(Append(*self._prepare(topic, item, level), session=item.session))
            except IcestreamError as error:
                Append(None, item.on_ack).finish(error)
            except Exception as error:  # noqa: BLE001 - such as ArrowMemoryError: the other batches are not concerned
                _log.exception("publish_failed", topic=str(topic.name))
                Append(None, item.on_ack).finish(IcestreamError(f"internal error: {error!r}", operation="publish"))
        if not prepared:
            return
        try:
            topic.log.submit_all(prepared, inline=inline)
        except IcestreamError as error:
            for append in prepared:
                append.finish(error)

    def _prepare(self, topic: Topic, item: PublishItem, level: AckLevel) -> tuple[Payload, OnAck]:
        """Check a batch and count its bytes; return its payload, and what to call when it is durable or refused."""
        limits, budget, batch, on_ack = self._limits, self._budget, item.batch, item.on_ack
        if level is AckLevel.TABLE:
            topic.record.check_ack(level)
        payload = topic.payload(
            batch,
            item.producer,
            item.sequence,
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
            if isinstance(append.error, ClosedError):
                append.error = topic.gone_error()
            if level is AckLevel.TABLE and append.error is None:
                self._acknowledge_from_table(topic, append, batch.num_rows, on_ack)
            else:
                on_ack(append)

        return payload, finished

    def _acknowledge_from_table(self, topic: Topic, append: Append, count: int, on_ack: OnAck) -> None:
        def committed(result: TableProgress | IcestreamError) -> None:
            if isinstance(result, IcestreamError):
                append.error = result
            on_ack(append)

        try:
            self._table_watch.when_committed(topic, append.base_offset + count, committed)
        except IcestreamError as error:
            committed(error)
