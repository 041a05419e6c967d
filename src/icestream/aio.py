"""icestream for asyncio: `icestream.aio.Client` and what it opens, with `await` and `async for`."""

from icestream.client import AsyncBatchReceipt as BatchReceipt
from icestream.client import AsyncClient as Client
from icestream.client import AsyncConsumer as Consumer
from icestream.client import AsyncProducer as Producer
from icestream.client import AsyncReceipt as Receipt
from icestream.client import AsyncSubscription as Subscription

__all__ = ["BatchReceipt", "Client", "Consumer", "Producer", "Receipt", "Subscription"]
