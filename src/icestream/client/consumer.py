"""Reading a topic from Python: an iterator of messages, or of Arrow batches."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa

from icestream.client.feed import Feed
from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.model.message import Message, messages_of
from icestream.model.messages import STREAM_SCHEMA

_NAMES = (STREAM_SCHEMA.names, [*STREAM_SCHEMA.names, "redelivery_count"])
"""Of the columns that a reader gets, and a subscription."""


def check_messages(batch: pa.RecordBatch) -> None:
    """Raise unless the batch's rows are messages."""
    if batch.schema.names not in _NAMES:
        raise InvalidRequestError(
            "the topic has its own schema, so its rows are no messages",
            operation="consume",
            remedy="take batches instead: .batches(), .receive_batch()",
        )


def messages(batch: pa.RecordBatch) -> Iterator[Message]:
    check_messages(batch)
    return messages_of(batch)


class Consumer:
    """Reads from its start to the end of the topic, or on and on when following. Iterate over it once."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._rows: Iterator[Message] = iter(())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Arrow batches in offset order. What was iterated as messages before is not given again."""
        while (batch := self.feed.get()) is not None:
            yield batch

    def poll(self, timeout: float | None = None) -> pa.RecordBatch | None:
        """The next batch, or None when none came within `timeout` seconds or the stream has ended (see `ended`)."""
        return self.feed.get(timeout)

    @property
    def ended(self) -> bool:
        """No more will come."""
        return self.feed.ended

    @property
    def interruption(self) -> IcestreamError | None:
        """When following: why the broker cannot be read from at the moment; None while it can."""
        return self.feed.interruption

    def close(self) -> None:
        """Stop reading, from any thread. An iteration that waits for the next message ends."""
        self.feed.close()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        while True:
            message = next(self._rows, None)
            if message is not None:
                return message
            batch = self.feed.get()
            if batch is None:
                raise StopIteration
            self._rows = messages(batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
