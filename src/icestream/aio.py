"""icestream for asyncio: `icestream.aio.Client` and what it opens, with `await` and `async for`."""

from icestream.client.aio import AsyncBatchReceipt as BatchReceipt
from icestream.client.aio import AsyncClient as Client
from icestream.client.aio import AsyncConsumer as Consumer
from icestream.client.aio import AsyncProducer as Producer
from icestream.client.aio import AsyncReceipt as Receipt
from icestream.client.aio import AsyncSubscription as Subscription

__all__ = ["BatchReceipt", "Client", "Consumer", "Producer", "Receipt", "Subscription"]
