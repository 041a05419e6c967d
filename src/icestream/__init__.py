"""icestream: pub/sub topics that are Apache Iceberg tables.

`icestream.Client` talks to a broker; `icestream.aio.Client` is the same for asyncio::

    from icestream import Client

    client = Client("grpc://127.0.0.1:8815")
    with client.producer("default/events") as producer:
        producer.send(b"hello").offset  # waits until the message is durable

A name is imported when it is first used, so that the command line starts without loading Arrow.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icestream.client import (
        BatchReceipt,
        BrokerEndpoint,
        Client,
        Consumer,
        Message,
        Producer,
        Receipt,
        Subscription,
        SubscriptionDescription,
        TopicDescription,
        TopicSummary,
    )
    from icestream.model.errors import IcestreamError
    from icestream.model.offsets import StartPosition

__version__ = version("icestream")

_MODULES = {
    "BatchReceipt": "icestream.client",
    "BrokerEndpoint": "icestream.client",
    "Client": "icestream.client",
    "Consumer": "icestream.client",
    "IcestreamError": "icestream.model.errors",
    "Message": "icestream.client",
    "Producer": "icestream.client",
    "Receipt": "icestream.client",
    "StartPosition": "icestream.model.offsets",
    "Subscription": "icestream.client",
    "SubscriptionDescription": "icestream.client",
    "TopicDescription": "icestream.client",
    "TopicSummary": "icestream.client",
}

__all__ = [
    "BatchReceipt",
    "BrokerEndpoint",
    "Client",
    "Consumer",
    "IcestreamError",
    "Message",
    "Producer",
    "Receipt",
    "StartPosition",
    "Subscription",
    "SubscriptionDescription",
    "TopicDescription",
    "TopicSummary",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in {"aio", "errors"}:
        return import_module("icestream.aio" if name == "aio" else "icestream.model.errors")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
