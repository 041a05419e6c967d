"""What a subscription needs of a topic. The storage above gives it; tests give a list of batches."""

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from icestream.model.errors import IcestreamError
from icestream.model.filters import Filter
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition


class SourceReader(Protocol):
    """A place in a topic. For one thread at a time."""

    @property
    def offset(self) -> int:
        """Where the next read goes on."""

    @property
    def schema(self) -> pa.Schema: ...

    def read(self, max_bytes: int, /) -> list[pa.RecordBatch]:
        """What follows in offset order, about so much of it; nothing when `offset` is the durable end.

        Offsets between the old and the new place that are in no batch have no message that is wanted: it was given up
        by a repair, or the reader's filter does not match it.
        """

    def close(self) -> None: ...


class SubscriptionSource(Protocol):
    """A topic."""

    @property
    def name(self) -> TopicName: ...

    @property
    def stream_id(self) -> str: ...

    @property
    def stream_schema(self) -> pa.Schema:
        """Of the batches that a reader made now gives."""

    @property
    def durable_end(self) -> int: ...

    @property
    def listeners(self) -> set[Callable[[], None]]:
        """Called, by any thread and briefly, when the durable end has moved or the topic is closed."""

    @property
    def mean_message_bytes(self) -> float: ...

    def start_offset_of(self, position: StartPosition, /) -> int: ...

    def time_at(self, offset: int, /) -> int | None:
        """When the message at an offset was published, in microseconds since 1970; None where there is none."""

    def in_memory(self, offset: int, /) -> bool:
        """Whether a read at this offset needs neither disk nor network."""

    def reader(self, offset: int, /, *, where: Filter | None = None) -> SourceReader:
        """A reader of the messages that match, from an offset on."""

    def gone(self) -> IcestreamError | None:
        """Why the topic cannot be read any more, if so: it was deleted, or its storage is closing."""


FindSource = Callable[[TopicName], SubscriptionSource]
"""The topic of a name, or TopicNotFoundError."""
