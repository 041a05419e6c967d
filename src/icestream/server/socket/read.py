"""A read over the socket door: frames as the log stores them, not decoded here; batches from the other tiers."""

from collections.abc import Callable

import msgspec

from icestream.model.callers import Caller
from icestream.model.errors import ClosedError, OffsetOutOfRangeError
from icestream.model.messages import MESSAGE_SCHEMA, first_offset
from icestream.model.offsets import StartPosition
from icestream.protocol.read import ReadTicket
from icestream.protocol.socket import MessageKind, MessageSocket, ReadBegins, batch_message, frames_message, message
from icestream.reader import TopicReader
from icestream.server.calls import missing_messages
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage
from icestream.wal import LogReader

_GONE_CHECK_SECONDS = 1.0
_READ_BYTES = 1 << 20
_NOTHING = msgspec.json.encode({})


class SocketRead:
    def __init__(self, storage: IcebergStorage, ticket: ReadTicket, caller: Caller) -> None:
        self._topic = storage.topic(caller.check_topic(ticket.topic, operation="read"))
        self._ticket = ticket
        self._offset = self._topic.start_offset_of(StartPosition.from_json(ticket.start))
        self._end = self._topic.checked_end(ticket.end, follow=ticket.follow)
        self._left = ticket.max_messages
        self._frames: LogReader | None = None
        self._batches: TopicReader | None = None

    def run(self, peer: MessageSocket, metrics: BrokerMetrics, is_stopping: Callable[[], bool]) -> None:
        """Send messages until the end of the range, or until the client is gone."""
        ticket = self._ticket
        if (
            self._topic.body_schema is not MESSAGE_SCHEMA
            or ticket.columns is not None
            or ticket.filter is not None
            or ticket.committed
        ):
            peer.send(message(MessageKind.END, {}))  # Flight does the rest
            return
        peer.send(message(MessageKind.READ, ReadBegins(self._offset)))
        try:
            while self._has_more() and not is_stopping():
                if not self._send_next(peer, metrics):
                    if not ticket.follow:
                        break
                    if not self._topic.log.wait_past(self._offset, _GONE_CHECK_SECONDS) and peer.is_gone:
                        return
        except ClosedError as error:
            raise self._topic.gone_error() from error
        if is_stopping():
            raise self._topic.gone_error()
        peer.send(message(MessageKind.END, {}))

    def _has_more(self) -> bool:
        return (self._end is None or self._offset < self._end) and (self._left is None or self._left > 0)

    def _moved_to(self, offset: int) -> None:
        """Note that messages up to an offset were sent. Frames and batches are sent whole: the client cuts them."""
        if self._left is not None:
            self._left -= offset - self._offset
        self._offset = offset

    def _send_next(self, peer: MessageSocket, metrics: BrokerMetrics) -> bool:
        """Send what follows; False if there is nothing at the moment."""
        log = self._topic.log
        if self._offset < log.start_offset:
            return self._send_batches(peer, metrics)
        try:
            if self._frames is None:
                self._frames = LogReader(log, self._offset)
            frames = self._frames.read(_READ_BYTES)
        except OffsetOutOfRangeError:
            if self._offset >= log.start_offset:
                raise
            return self._send_batches(peer, metrics)  # retention has removed them meanwhile: another tier has them
        if not frames:
            return False
        peer.send(*frames_message(frames))
        self._moved_to(frames[-1].end_offset)
        metrics.delivered(frames[-1].end_offset - frames[0].base_offset, sum(len(frame.body) for frame in frames))
        return True

    def _send_batches(self, peer: MessageSocket, metrics: BrokerMetrics) -> bool:
        """Send what the log no longer has: from the cloud or the table."""
        self._close_frames()  # its position is behind when the log is read again
        if self._batches is None or self._batches.offset != self._offset:
            self._close_batches()
            self._batches = self._topic.reader(StartPosition.offset(self._offset))
        batches = self._batches.read()
        for batch in batches:
            self._send_missing(peer, first_offset(batch))
            peer.send(*batch_message(_NOTHING, batch))
            self._moved_to(self._offset + batch.num_rows)
            metrics.delivered(batch.num_rows, batch.nbytes)
        self._send_missing(peer, self._batches.offset)
        return bool(batches)

    def _send_missing(self, peer: MessageSocket, next_offset: int) -> None:
        """Say which messages are missing for good before an offset, if any are."""
        if next_offset > self._offset:
            peer.send(message(MessageKind.MISSING, missing_messages(self._topic, self._offset, next_offset)))
            self._moved_to(next_offset)

    def close(self) -> None:
        self._close_frames()
        self._close_batches()

    def _close_frames(self) -> None:
        if self._frames is not None:
            self._frames.close()
        self._frames = None

    def _close_batches(self) -> None:
        if self._batches is not None:
            self._batches.close()
        self._batches = None
