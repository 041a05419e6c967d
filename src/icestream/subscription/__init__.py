"""Consumers of a topic that share its messages, each subscription with its own pace and progress.

What it guarantees:

* At least once: a message is sent until it is acknowledged, or is in the dead-letter topic. No crash of a consumer, of
  the broker or of the metadata store loses one. After a clean restart nothing acknowledged is sent again. After a
  crash, at most what was acknowledged since the last write of progress is.
* Order: consumers of an exclusive or failover subscription get messages in offset order, those of a key-shared one in
  order of each key. Only a message that was nacked, or timed out, comes later than those that follow it.
* A slow, stuck or vanished consumer delays only the messages that it has, and those only until its session times out.
* Memory is bounded: a few batches read ahead, and a few bytes a message between the oldest unacknowledged one and the
  newest delivered. No object is made for a message.

In the metadata store: one JSON record a subscription, under `keys.subscription_progress`: options, a floor below which
all is acknowledged, ranges above it. It is written in the background; consumers never wait for it.

One message's way: `cursor` (the topic, batches read ahead) → `window` (the state of each message) → `modes` (which
consumer gets it) → `state` (the transitions) → `subscription` (lock, threads, sessions). Beside it, `hub` wakes
subscriptions, `progress` records how far they are, `dead_letters` moves messages that failed too often.

```python
subscription = storage.subscriptions.open("default/orders", "billing", SubscriptionOptions(SubscriptionType.SHARED))
session = subscription.connect("worker-1")
batch = session.receive(timeout_seconds=10)
if batch is not None:
    first, last = batch.column(OFFSET)[0].as_py(), batch.column(OFFSET)[-1].as_py()
    session.ack([(first, last + 1)])
```
"""

from icestream.model.enums import SubscriptionType
from icestream.model.errors import SubscriptionBusyError, SubscriptionNotFoundError
from icestream.protocol.subscribe import SubscriptionStats
from icestream.subscription.cursor import SubscriptionSource
from icestream.subscription.options import SubscriptionOptions
from icestream.subscription.progress import Progress
from icestream.subscription.subscription import BrokerSubscription, ConsumerSession, describe
from icestream.subscription.subscriptions import Subscriptions

__all__ = [
    "BrokerSubscription",
    "ConsumerSession",
    "Progress",
    "SubscriptionBusyError",
    "SubscriptionNotFoundError",
    "SubscriptionOptions",
    "SubscriptionSource",
    "SubscriptionStats",
    "SubscriptionType",
    "Subscriptions",
    "describe",
]
