"""What the types of subscription have in common. Consumers are small numbers here."""

from icestream.subscription.key_slots import Slots
from icestream.subscription.window import Mask


class Mode:
    """Every consumer may have every message, unless a type says otherwise."""

    by_key = False
    """Whether messages are divided by their key's slot."""
    cumulative = False
    """Whether "this and all before" means something: one consumer has them all."""

    def __init__(self) -> None:
        self.consumers: list[int] = []
        """In the order in which they came."""

    def admits_one_more(self) -> bool:
        return True

    def joined(self, consumer: int) -> None:
        self.consumers.append(consumer)

    def left(self, consumer: int) -> None:
        """Called when nothing that was delivered to it is open any more."""
        self.consumers.remove(consumer)

    def is_active(self, consumer: int) -> bool:
        return consumer in self.consumers

    def allowed(self, consumer: int) -> Mask | None:
        """The slots whose messages it may have now; None stands for all."""
        del consumer
        return None

    def share(self, available: int) -> int:
        """Most messages of those at hand that one consumer takes before it is another's turn."""
        return available

    def delivered(self, slots: Slots) -> None:
        """These slots' messages, one entry each, are with their consumers."""

    def forget_deliveries(self) -> None:
        """Nothing that was delivered counts any more."""

    def settled(self, slots: Slots) -> bool:
        """They are not any more. True when that has given somebody new slots."""
        del slots
        return False
