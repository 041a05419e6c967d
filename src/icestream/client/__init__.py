"""The client: publish, read and administer topics over Arrow Flight. Needs nothing but pyarrow and msgspec.

    with Client("grpc://127.0.0.1:8815") as client, client.producer("default/events") as producer:
        offset = producer.send(b"hello").offset

What it guarantees, whatever happens to the connection or the broker:

- A receipt that gives an offset means that the message is stored as safely as the topic's acknowledgement level says.
- One producer's messages are stored in the order of their `send`, each once. A message whose receipt fails with an
  error of the broker is not stored; one that fails because the broker did not respond (`UnavailableError`) may be.
- A consumer gets every offset from its start, in order, once; a following one across restarts of the broker too.
- A subscription delivers every message until it is acknowledged, and never again once a flush has confirmed that.
- Memory is bounded: per producer by `max_buffer_bytes`, per consumer by its read-ahead, per subscription by its credit.

How it is built:

    endpoint        how to reach a broker: address, token, certificates
    client          what applications begin with; its calls by subject are in admin and pipeline
    producer        what applications publish with, and the receipts that `send` returns   → publisher, transport
    publisher       the state machine of all batches: order, numbering, retries; pure
    transport       Flight calls out, typed errors back; the publish stream and the sender thread
    consumer        reads a topic ahead, without a group
    subscription    consumes from a subscription
    aio             the same for asyncio

Not safe across a fork: make clients afterwards.
"""

from icestream.client.aio import (
    AsyncBatchReceipt,
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncReceipt,
    AsyncSubscription,
)
from icestream.client.client import MAX_IN_FLIGHT, Client
from icestream.client.consumer import Consumer
from icestream.client.endpoint import BrokerEndpoint
from icestream.client.pipeline import FrameReader
from icestream.client.producer import BatchReceipt, Producer, Receipt
from icestream.client.subscription import Subscription
from icestream.client.transport import SERVER, poll_directly
from icestream.model.clock import Backoff
from icestream.model.messages import Message
from icestream.protocol.admin import TopicDescription, TopicSummary
from icestream.protocol.subscribe import SubscriptionDescription

__all__ = [
    "MAX_IN_FLIGHT",
    "SERVER",
    "AsyncBatchReceipt",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncReceipt",
    "AsyncSubscription",
    "Backoff",
    "BatchReceipt",
    "BrokerEndpoint",
    "Client",
    "Consumer",
    "FrameReader",
    "Message",
    "Producer",
    "Receipt",
    "Subscription",
    "SubscriptionDescription",
    "TopicDescription",
    "TopicSummary",
    "poll_directly",
]
