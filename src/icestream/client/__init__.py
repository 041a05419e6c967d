"""The client: publish, read and administer topics over Arrow Flight. Needs nothing but pyarrow.

What it guarantees, whatever happens to the connection or the broker:

- A receipt that gives an offset means that the message is stored as safely as the topic's acknowledgement level says.
- One producer's messages are stored in the order of their `send`, each once; a message whose receipt fails with an
  error of the broker is not stored, and one that fails because nobody answered (`UnavailableError`) may be.
- A consumer gets every offset from its start, in order, once; following ones across restarts of the broker too.
- A subscription delivers every message until it is acknowledged, whoever crashes, and none that a flush has confirmed.
- Memory is bounded: per producer by `max_buffer_bytes`, per consumer by its read-ahead, per subscription by its credit.

How it is built, from the outside in: `client` makes a `producer` with an `outbox`, which is the state machine that
keeps order and numbering; a `publisher` moves the batches of all outboxes of one schema over one `publish_stream`.
`consumer` hands out what a `feed` reads ahead. A `subscription` hands out what its `subscription_feed` gets by a
`subscription_stream`, and `subscription_acks` sends what it says. `aio` is the same for asyncio.
Not safe across a fork: make clients afterwards.
"""

from icestream.client.admin import SubscriptionDescription, TopicDescription
from icestream.client.client import Client
from icestream.client.consumer import Consumer
from icestream.client.endpoint import BrokerEndpoint
from icestream.client.producer import Producer
from icestream.client.receipt import BatchReceipt, Receipt
from icestream.client.subscription import Subscription
from icestream.model.messages import Message

__all__ = [
    "BatchReceipt",
    "BrokerEndpoint",
    "Client",
    "Consumer",
    "Message",
    "Producer",
    "Receipt",
    "Subscription",
    "SubscriptionDescription",
    "TopicDescription",
]
