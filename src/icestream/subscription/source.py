"""What a subscription needs of a topic. The storage implements it; tests use a list of batches."""

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from icestream.model.errors import IcestreamError
from icestream.model.filters import Filter
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition


class SourceReader(Protocol):
    """A position in a topic. For one thread at a time."""

    @property
    def offset(self) -> int:
        """The offset of the next message."""

    @property
    def schema(self) -> pa.Schema: ...

    def read(self, max_bytes: int, /) -> list[pa.RecordBatch]:
        """Return what follows in offset order, about `max_bytes`; nothing if `offset` is the durable end.

        Offsets between the old and the new position that are in no batch are not wanted: a repair gave them up, or the
        filter does not match.
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
        """The schema of the batches of a new reader."""

    @property
    def durable_end(self) -> int: ...

    @property
    def listeners(self) -> set[Callable[[], None]]:
        """Called, by any thread and briefly, when the durable end has moved or the topic is closed."""

    @property
    def mean_message_bytes(self) -> float: ...

    def start_offset_of(self, position: StartPosition, /) -> int: ...

    def time_at(self, offset: int, /) -> int | None:
        """Return when a message was published, in microseconds since 1970; None if there is none at the offset."""

    def in_memory(self, offset: int, /) -> bool:
        """Return whether a read at this offset needs neither disk nor network."""

    def reader(self, offset: int, /, *, where: Filter | None = None) -> SourceReader:
        """Return a reader of the messages that match, from an offset on."""

    def gone(self) -> IcestreamError | None:
        """Return why the topic cannot be read any more: it was deleted, or its storage is closing; None if it can."""


FindSource = Callable[[TopicName], SubscriptionSource]
"""Returns the topic of a name, or raises TopicNotFoundError."""
