"""One consumer has all messages: no other may connect, or the others wait for their turn."""

from icestream.subscription.modes.mode import Mode


class Exclusive(Mode):
    cumulative = True

    def admits_one_more(self) -> bool:
        return not self.consumers


class Failover(Mode):
    cumulative = True

    def is_active(self, consumer: int) -> bool:
        return self.consumers[:1] == [consumer]
