"""The messages that measurements publish."""

import os

import pyarrow as pa

from icestream.client import Client

BATCH_MESSAGES = 10_000


def random_batch(message_bytes: int) -> pa.RecordBatch:
    """Messages of which half compresses and half does not."""
    half = message_bytes // 2
    payloads = [os.urandom(half) + b"x" * (message_bytes - half) for _ in range(BATCH_MESSAGES)]
    return pa.record_batch({"payload": pa.array(payloads, pa.binary())})


def publish(client: Client, topic: str, batch: pa.RecordBatch, messages: int) -> None:
    """As many messages as said, the batch again and again."""
    with client.producer(topic) as producer:
        for first in range(0, messages, batch.num_rows):
            producer.send_batch(batch.slice(0, min(batch.num_rows, messages - first)))
