"""Producers that were answered together are likely to send again together.

So the first of them to come back waits a moment for the others, and the last one writes what all have. No threads, no
clock: the publisher's lock guards it, and the publisher says what time it is.
"""

from collections.abc import Iterable

from icestream.client.outbox import Outbox

GATHER_SECONDS = 0.001
"""How long they wait for each other: less than the answers took."""


class Gathering:
    def __init__(self) -> None:
        self._awaited: set[Outbox] = set()
        """Were answered together, and may be about to send again."""
        self._here: list[Outbox] = []
        """Those of them that did, and wait for the others."""
        self.until = 0.0

    def begin(self, answered: Iterable[Outbox], now: float) -> None:
        self._awaited = set(answered)
        self.until = now + GATHER_SECONDS

    def is_for(self, outbox: Outbox, now: float) -> bool:
        return outbox in self._awaited and now < self.until

    def join(self, outbox: Outbox) -> bool:
        """One of the awaited is there; whether all are."""
        self._awaited.discard(outbox)
        if not outbox.scheduled:
            outbox.scheduled = True
            self._here.append(outbox)
        return not self._awaited

    def leave(self, outbox: Outbox) -> None:
        """It will not come, or has been written otherwise."""
        self._awaited.discard(outbox)

    def end(self) -> list[Outbox]:
        """Those that wait, to be written now; nobody is awaited any more."""
        self._awaited = set()
        here, self._here = self._here, []
        return here

    def __len__(self) -> int:
        return len(self._here)
