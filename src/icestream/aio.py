"""icestream for asyncio: `icestream.aio.Client`."""

from icestream.client.aio import BatchReceipt, Client, Consumer, Producer, Receipt

__all__ = ["BatchReceipt", "Client", "Consumer", "Producer", "Receipt"]
