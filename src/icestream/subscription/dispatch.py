"""Sending: from the topic to the consumers, each within its credit and in its thread."""

from time import monotonic

import numpy as np
import pyarrow as pa

from icestream.model.errors import IcestreamError
from icestream.subscription.acks import Answers, round_up
from icestream.subscription.consumer import ConsumerSession
from icestream.subscription.cursor import Cursor, as_delivery
from icestream.subscription.state import Live
from icestream.subscription.window import Rows

_MANY_MESSAGES = 4_096


class Dispatch:
    def __init__(self, live: Live, answers: Answers) -> None:
        self._live = live
        self._answers = answers

    def receive(
        self,
        session: ConsumerSession,
        *,
        max_messages: int | None,
        max_bytes: int | None,
        timeout_seconds: float | None,
    ) -> pa.RecordBatch | None:
        deadline = None if timeout_seconds is None else monotonic() + timeout_seconds
        with self._live.engine.turns, self._live.lock:
            try:
                while True:
                    if session.ended is not None:
                        raise session.ended.with_traceback(None)
                    messages, nbytes = session.credit.left(max_messages, max_bytes)
                    served = messages > 0 and nbytes > 0 and self._live.mode.is_active(session.number)
                    if served:
                        batch, again_from = self._next(session, messages, nbytes)
                        if batch is not None:
                            return batch
                        if self._read(again_from, paced=not session.listeners):
                            continue
                    seconds = None if deadline is None else deadline - monotonic()
                    if seconds is not None and seconds <= 0:
                        return None
                    self._wait(session, seconds, served=served)
            finally:
                self._live.expect()

    def _next(
        self, session: ConsumerSession, max_messages: int, max_bytes: int
    ) -> tuple[pa.RecordBatch | None, int | None]:
        """The session's next messages, or the offset of one that has to be read again first."""
        live = self._live
        cursor = live.cursor
        assert cursor is not None
        allowed = live.mode.allowed(session.number)
        offset = cursor.window.first_ready(session.scan_from, cursor.limit, allowed)
        if offset is None:
            session.scan_from = min(cursor.window.end, cursor.limit)
            return None, None
        session.scan_from = offset
        found = cursor.at_hand(offset)
        if found is None:
            return None, offset
        piece, place = found
        share = live.mode.share(cursor.rows_at_hand)
        batch, rows, nbytes = cursor.cut(piece, place, allowed, min(max_messages, share), max_bytes)
        counts = cursor.window.redeliveries(rows)
        if counts is not None:
            live.redeliveries += int(np.count_nonzero(counts))
        self._deliver(cursor, session, rows)
        session.credit.take(len(rows), nbytes)
        cursor.delivered_from(piece)
        return as_delivery(batch, counts, session.schema), None

    def _deliver(self, cursor: Cursor, session: ConsumerSession, rows: Rows) -> None:
        live, window = self._live, cursor.window
        due_ms = None
        if live.options.ack_timeout_ms is not None:
            due_ms = round_up(live.engine.now_ms() + live.options.ack_timeout_ms)
            live.engine.hub.schedule(live.owner, due_ms)
        if live.mode.by_key:
            live.mode.delivered(window.slots(rows))
        window.deliver(rows, session.number, due_ms)
        end = int(window.offsets(rows[-1:])[0]) + 1
        session.scan_from = end
        session.delivered_end = max(session.delivered_end, end)

    def _read(self, again_from: int | None, *, paced: bool) -> bool:
        """Read what is missing, with the lock let go; False when there is nothing to read or somebody else reads."""
        live = self._live
        cursor = live.cursor
        assert cursor is not None
        if again_from is None and not cursor.can_read_on:
            live.at_limit |= cursor.window.end >= cursor.limit
            return False
        if live.reading or (paced and again_from is None and self._pause_seconds(cursor) > 0):
            return False
        job = cursor.job(again_from)
        live.reading = True
        far = not job.source.in_memory(job.offset)
        live.lock.release()
        if far:
            live.engine.turns.release()
        try:
            job.run()
        except BaseException as error:
            job.close()
            gone = job.source.gone() if isinstance(error, IcestreamError) else None
            raise gone or error from error
        finally:
            if far:
                live.engine.turns.acquire()
            live.lock.acquire()
            live.reading = False
            if live.mode.by_key:
                live.wake_all()  # who waits longest may have nothing to get, and others something
            else:
                live.wake_one()
        live.read_again_at = monotonic() + live.engine.hub.pause_seconds(live.owner.topic)
        if cursor is not live.cursor:  # it was sought elsewhere meanwhile, or the last consumer has gone
            job.close()
            return True
        floor = cursor.window.floor
        pieces = cursor.finish(job)
        if cursor.window.floor != floor:
            live.floor_moved()
        self._answers.restored(cursor)
        if pieces and live.mode.by_key:
            live.wake_all()  # only now it is known whom they are for
        return True

    def _pause_seconds(self, cursor: Cursor) -> float:
        """How long to let messages collect; not while there is a good deal of them."""
        if self._live.owner.source.durable_end - cursor.window.end >= _MANY_MESSAGES:
            return 0.0
        return self._live.read_again_at - monotonic()

    def _wait(self, session: ConsumerSession, seconds: float | None, *, served: bool) -> None:
        live = self._live
        if not served:
            self._sleep(session, seconds)
            return
        live.waiters.append(session)
        try:
            cursor = live.cursor
            pause = self._pause_seconds(cursor) if cursor is not None else 0.0
            if pause > 0 and not session.listeners:
                self._sleep(session, pause if seconds is None else min(pause, seconds))
                return
            live.engine.hub.expect(live.owner)
            if live.reading or cursor is None or not cursor.can_read_on:
                self._sleep(session, seconds)
        finally:
            if session in live.waiters:
                live.waiters.remove(session)

    def _sleep(self, session: ConsumerSession, seconds: float | None) -> None:
        turns, lock = self._live.engine.turns, self._live.lock
        turns.release()
        try:
            session.ready.wait(seconds)
        finally:
            lock.release()
            turns.acquire()
            lock.acquire()
