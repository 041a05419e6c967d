"""Consumers of a topic that share its messages, each subscription with its own pace and progress.

What it guarantees:

* At least once: a message is sent until it was acknowledged, or is in the dead-letter topic. No crash of a consumer, of
  the broker or of the metadata store loses one. After a clean restart nothing acknowledged is sent again; after a
  crash, at most what was acknowledged since the last write of progress.
* Order: consumers of an exclusive or failover subscription get messages in offset order, those of a key-shared one in
  order of each key. Only what was refused, or timed out, comes later than what follows it.
* A slow, stuck or vanished consumer keeps nobody else from anything but the messages that it has, and those only until
  it is found silent.
* Memory is bounded: a few pieces read ahead, and a few bytes a message between the oldest unacknowledged one and the
  newest delivered. No object is made for a message.

In the metadata store: one JSON record a subscription, under `keys.subscription_progress`: options, a floor below
which all is acknowledged, ranges above it. Written behind the consumers' back, never in their way.

`window` has the state of messages, `cursor` what was read, `modes` who gets what, `dispatch` sends, `answers` takes
acknowledgements, `live` is what one lock guards, `hub` wakes, `progress_writer` writes, `dead_letters` buries.
A topic is known by the protocol `SubscriptionSource` alone.
"""

from icestream.model.enums import SubscriptionType
from icestream.model.errors import SubscriptionBusyError, SubscriptionNotFoundError
from icestream.subscription.dead_letters import ORIGIN_COLUMNS
from icestream.subscription.options import SubscriptionOptions
from icestream.subscription.progress import Progress
from icestream.subscription.source import SourceReader, SubscriptionSource
from icestream.subscription.stats import ConsumerStats, SubscriptionStats
from icestream.subscription.subscription import BrokerSubscription, ConsumerSession
from icestream.subscription.subscriptions import Subscriptions

__all__ = [
    "ORIGIN_COLUMNS",
    "BrokerSubscription",
    "ConsumerSession",
    "ConsumerStats",
    "Progress",
    "SourceReader",
    "SubscriptionBusyError",
    "SubscriptionNotFoundError",
    "SubscriptionOptions",
    "SubscriptionSource",
    "SubscriptionStats",
    "SubscriptionType",
    "Subscriptions",
]
