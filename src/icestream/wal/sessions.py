"""Which of the producers that were opened under one name may send now: the last one.

Two that count under one name would take each other's messages for repetitions of their own. So each that is opened has
a session, a number above 0, and once a later one is open, what an earlier one sends is refused. Session 0 is for those
who share a name and its numbers on purpose: whoever sends a number first has it stored.

Sessions are known in memory alone: in a broker that has just started, the first to send has the name. If it was the
earlier one, its message can pass for a repetition of the later one's; it knows itself that it repeated nothing, and
does not take the answer (`icestream.client.outbox`). The number of names is bounded; the one that was opened longest
ago is forgotten first.
"""

from collections import OrderedDict

from icestream.model.errors import ProducerFencedError


class Sessions:
    def __init__(self, max_producers: int) -> None:
        self._max_producers = max_producers
        self._newest: OrderedDict[str, int] = OrderedDict()

    def open(self, producer: str, session: int) -> None:
        self._newest[producer] = session
        self._newest.move_to_end(producer)
        if len(self._newest) > self._max_producers:
            self._newest.popitem(last=False)

    def check(self, producer: str, session: int) -> None:
        """Raise where another session has the name."""
        newest = self._newest.get(producer)
        if newest is None:
            self.open(producer, session)
        elif newest != session:
            raise ProducerFencedError(
                f"another producer {producer!r} was opened after this one",
                operation="publish",
                remedy="let each have a name of its own, or none; what this one sent again may be stored from before",
            )
