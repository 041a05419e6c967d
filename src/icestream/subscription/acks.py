"""What consumers answer, and what silence means: acknowledged, refused, timed out, gone."""

from collections.abc import Sequence

from icestream.model.errors import ClosedError, InvalidRequestError
from icestream.subscription.consumer import ConsumerSession
from icestream.subscription.cursor import Cursor
from icestream.subscription.offset_ranges import as_ranges
from icestream.subscription.options import MAX_DELAY_MS
from icestream.subscription.state import Live
from icestream.subscription.window import Rows, State

_GRAIN_MS = 10


def round_up(time_ms: int) -> int:
    """To a coarser time, so that messages become due in groups."""
    return -(-time_ms // _GRAIN_MS) * _GRAIN_MS


class Answers:
    def __init__(self, live: Live) -> None:
        self._live = live

    def touch(self, session: ConsumerSession) -> None:
        session.seen_us = self._live.engine.clock()

    def grant(self, session: ConsumerSession, messages: int, nbytes: int) -> None:
        with self._live.lock:
            self.touch(session)
            session.credit.grant(messages, nbytes)
            session.wake()

    def ack(self, session: ConsumerSession, ranges: Sequence[tuple[int, int]]) -> None:
        wanted = as_ranges(ranges, operation="ack")
        with self._live.lock:
            cursor = self._cursor_of(session)
            if cursor is not None:
                self.acknowledge(cursor, cursor.window.held_in(wanted, session.number))

    def ack_cumulative(self, session: ConsumerSession, offset: int) -> None:
        with self._live.lock:
            if not self._live.options.type.acks_cumulatively:
                raise InvalidRequestError(
                    f"a {self._live.options.type.value} subscription has no cumulative acknowledgement",
                    operation="ack",
                    place=self._live.owner.place,
                    remedy="acknowledge the messages themselves",
                )
            cursor = self._cursor_of(session)
            if cursor is not None:
                end = min(offset + 1, session.delivered_end)
                below = as_ranges([(cursor.window.floor, end)], operation="ack")
                self.acknowledge(cursor, cursor.window.open_in(below))

    def nack(self, session: ConsumerSession, ranges: Sequence[tuple[int, int]], delay_ms: int | None) -> None:
        live = self._live
        delay_ms = live.options.nack_delay_ms if delay_ms is None else delay_ms
        if not 0 <= delay_ms <= MAX_DELAY_MS:
            raise InvalidRequestError(f"a delay is 0 to {MAX_DELAY_MS} ms, not {delay_ms}", operation="nack")
        wanted = as_ranges(ranges, operation="nack")
        with live.lock:
            cursor = self._cursor_of(session)
            if cursor is not None:
                due_ms = round_up(live.engine.now_ms() + delay_ms) if delay_ms else None
                self.take_back(cursor, cursor.window.held_in(wanted, session.number), failed=True, due_ms=due_ms)

    def _cursor_of(self, session: ConsumerSession) -> Cursor | None:
        """None when the session has ended, and all that it had is with others."""
        self.touch(session)
        return None if session.closed else self._live.cursor

    # Under the lock

    def acknowledge(self, cursor: Cursor, rows: Rows) -> None:
        if not len(rows):
            return
        window = cursor.window
        moved = self._slots_moved(cursor, window.delivered_of(rows))
        window.put_acknowledged(rows)
        if window.settle():
            self._live.floor_moved()
        self._live.changed()
        if moved:
            self._live.look_again()

    def take_back(self, cursor: Cursor, rows: Rows, *, failed: bool, due_ms: int | None = None) -> None:
        """Delivered messages come again, or go where those go that came too often."""
        if not len(rows):
            return
        live, window = self._live, cursor.window
        moved = self._slots_moved(cursor, rows)
        window.take_back(rows, failed=failed, due_ms=due_ms)
        live.changed()
        if failed:
            rows = self._bury(cursor, rows)
        if moved:
            live.look_again()
        if due_ms is None:
            live.came_ready(cursor, rows)
        elif len(rows):
            live.engine.hub.schedule(live.owner, due_ms)

    def _slots_moved(self, cursor: Cursor, rows: Rows) -> bool:
        """Messages are no longer with their consumer: True if that sets slots free to move."""
        mode = self._live.mode
        return mode.by_key and len(rows) > 0 and mode.settled(cursor.window.slots(rows))

    def _bury(self, cursor: Cursor, rows: Rows) -> Rows:
        """Set those aside that came too often; the others."""
        live, most = self._live, self._live.options.max_redeliveries
        if most is None or not len(rows):
            return rows
        dead = cursor.window.failures(rows) > most
        if dead.any():
            cursor.window.put_dead(rows[dead])
            live.engine.dead_letters.expect(live.owner)
        return rows[~dead]

    def restored(self, cursor: Cursor) -> None:
        """Messages were read that a consumer had refused before the subscription was opened."""
        if cursor.has_restored:
            cursor.has_restored = False
            for state in (State.READY, State.DELAYED):
                self._bury(cursor, cursor.window.in_state(state))
        if cursor.restored_due_ms is not None:
            self._live.engine.hub.schedule(self._live.owner, cursor.restored_due_ms)
            cursor.restored_due_ms = None

    def expire(self, cursor: Cursor, now_ms: int) -> int | None:
        """What is due comes again; when to look the next time."""
        overdue, delayed, following_ms = cursor.window.due(now_ms)
        cursor.window.wake(delayed)
        self._live.came_ready(cursor, delayed)
        self.take_back(cursor, overdue, failed=True)
        return following_ms


def silent(session: ConsumerSession, place: str) -> ClosedError:
    return ClosedError(
        f"the consumer was silent for {session.timeout_ms} ms",
        operation="receive",
        place=place,
        remedy="connect again, and send heartbeats or raise subscriptions.session_timeout_ms",
        retryable=True,
    )
