"""icestream: pub/sub topics that are Apache Iceberg tables.

`icestream.Client` talks to a broker; `icestream.aio.Client` is the same for asyncio. Names are imported when they are
first used, so that the command line starts without loading Arrow.
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
    )
    from icestream.model.errors import IcestreamError
    from icestream.model.offsets import StartPosition

__version__ = version("icestream")

_HOME = {
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
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in {"aio", "errors"}:
        return import_module("icestream.aio" if name == "aio" else "icestream.model.errors")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
