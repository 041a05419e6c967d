"""Who gets which message: one file a type of subscription."""

from icestream.subscription.modes.key_shared import KeyShared
from icestream.subscription.modes.mode import Mode
from icestream.subscription.modes.shared import Shared
from icestream.subscription.modes.single import Exclusive, Failover
from icestream.subscription.options import SubscriptionType

__all__ = ["Mode", "make_mode"]

_MODES: dict[SubscriptionType, type[Mode]] = {
    SubscriptionType.EXCLUSIVE: Exclusive,
    SubscriptionType.FAILOVER: Failover,
    SubscriptionType.SHARED: Shared,
    SubscriptionType.KEY_SHARED: KeyShared,
}


def make_mode(kind: SubscriptionType) -> Mode:
    return _MODES[kind]()
