"""Messages go to the consumers in turns, in runs: what is at hand is divided evenly among those who are there.

A consumer that comes back for more before the others have come at all gets more: nobody waits for a slow one.
"""

from icestream.subscription.modes.mode import Mode


class Shared(Mode):
    def share(self, available: int) -> int:
        return -(-available // max(1, len(self.consumers)))
