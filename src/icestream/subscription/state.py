"""The state of a subscription that one lock guards: its consumers and its cursor, and who has to be woken.

A consumer's thread that finds nothing waits. When messages arrive just the one that waits longest is woken; having
taken its share it wakes the next if something is left. Consumers without a thread have listeners instead, and are
all told.
"""

import threading
from collections import deque
from typing import TYPE_CHECKING

from icestream.subscription.consumer import ConsumerSession
from icestream.subscription.cursor import Cursor
from icestream.subscription.engine import Engine
from icestream.subscription.modes import make_mode
from icestream.subscription.options import SubscriptionOptions
from icestream.subscription.window import Rows

if TYPE_CHECKING:  # the state of that very subscription
    from icestream.subscription.subscription import Subscription


class Live:
    def __init__(self, engine: Engine, owner: "Subscription", options: SubscriptionOptions) -> None:
        self.engine = engine
        self.owner = owner
        self.options = options
        self.lock = threading.Lock()
        self.mode = make_mode(options.type)
        self.cursor: Cursor | None = None
        """As long as there are consumers."""
        self.sessions: dict[int, ConsumerSession] = {}
        self.waiters: deque[ConsumerSession] = deque()
        """Those whose threads wait for messages, in turns."""
        self.reading = False
        """One of the threads reads, with the lock let go."""
        self.read_again_at = 0.0
        """By the monotonic clock: until then messages may collect."""
        self.at_limit = False
        """Somebody waits for the floor to move."""
        self.redeliveries = 0
        self.dead_letters = 0
        self.version = 0
        """Counts what has to be written."""

    def changed(self, *, urgent: bool = False) -> None:
        self.version += 1
        self.engine.writer.expect(self.owner, urgent=urgent)

    def use_options(self, options: SubscriptionOptions) -> None:
        if options.type is not self.options.type:
            self.mode = make_mode(options.type)
        self.options = options

    # Waking

    def expect(self) -> None:
        """Whoever waits now is to be woken by the next message, or at once if there is one already."""
        listening = [session for session in self.sessions.values() if session.listeners]
        if not listening and not self.waiters:
            return
        self.engine.hub.expect(self.owner)
        if self.reading:
            return  # whoever reads wakes the next one afterwards
        if self.waiters and self._could_serve(self.waiters[0]):
            self.waiters.popleft().ready.notify_all()
        for session in listening:
            if self._could_serve(session):
                session.tell_listeners()

    def _could_serve(self, session: ConsumerSession) -> bool:
        messages, nbytes = session.credit.left(None, None)
        cursor = self.cursor
        if cursor is None or messages <= 0 or nbytes <= 0 or not self.mode.is_active(session.number):
            return False
        allowed = self.mode.allowed(session.number)
        return cursor.can_read_on or cursor.window.first_ready(session.scan_from, cursor.limit, allowed) is not None

    def wake_one(self) -> None:
        if self.waiters:
            self.waiters.popleft().ready.notify_all()
        self._tell_listeners()

    def wake_all(self) -> None:
        for session in self.sessions.values():
            session.ready.notify_all()
        self._tell_listeners()

    def _tell_listeners(self) -> None:
        for session in self.sessions.values():
            session.tell_listeners()

    def look_again(self) -> None:
        """Something has changed about who may have what: all look from the floor on."""
        floor = self.cursor.window.floor if self.cursor is not None else 0
        for session in self.sessions.values():
            session.scan_from = floor
        self.wake_all()

    def came_ready(self, cursor: Cursor, rows: Rows) -> None:
        """Messages that were delivered before can be delivered again."""
        if len(rows):
            first = int(cursor.window.offsets(rows[:1])[0])
            for session in self.sessions.values():
                session.scan_from = min(session.scan_from, first)
            self.wake_all()

    def floor_moved(self) -> None:
        self.changed()
        if self.at_limit:
            self.at_limit = False
            self.wake_all()
