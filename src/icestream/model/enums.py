"""Closed sets of values, each written down once. Settings, CLI, HTTP, Flight and the client use them.

A member equals its text, so it can be stored, compared and sent as it is.
"""

from enum import StrEnum
from typing import Any, Self

from icestream.model.errors import InvalidRequestError
from icestream.model.names import TopicName, copy_of


class ClosedSet(StrEnum):
    """A set of names that users may write."""

    @classmethod
    def what(cls) -> str:
        """Return what a member is, for error messages."""
        return "a valid value"

    @classmethod
    def parse(cls, text: Any, *, operation: str) -> Self:
        """Return the member of this name, or raise `InvalidRequestError` that lists the names."""
        try:
            return cls(text)
        except ValueError:
            raise InvalidRequestError(
                f"{text!r} is not {cls.what()}", operation=operation, remedy=f"use {cls.choices()}"
            ) from None

    @classmethod
    def choices(cls) -> str:
        """Return all names as a phrase: `a, b or c`."""
        *first, last = (member.value for member in cls)
        return f"{', '.join(first)} or {last}"


class AckLevel(ClosedSet):
    """When a publish is acknowledged."""

    MEMORY = "memory"
    """The messages are in the broker's memory. A crash of the broker loses them."""
    DISK = "disk"
    """The messages are synced to the broker's disk."""
    TABLE = "table"
    """The messages are in a committed snapshot of the topic's table."""

    @classmethod
    def what(cls) -> str:
        return "an acknowledgement level of this broker"


class StorageKind(ClosedSet):
    """Where a topic's messages stay."""

    TABLE = "table"
    """In an Iceberg table."""
    LOG = "log"
    """In cloud objects, until the topic's retention removes them."""

    @classmethod
    def what(cls) -> str:
        return "a kind of storage"


class StorageFormat(ClosedSet):
    """In which form a broker keeps its topics: Iceberg tables, a Parquet copy, or both.

    The plain files of a topic have an Iceberg table of their own, the topic's *Parquet copy*. Its name is the topic's
    with `__parquet` appended. So a topic has one or two tables, each with a ledger. Readers also read the table that an
    earlier format has left.
    """

    PARQUET = "parquet"
    """Plain Parquet files by date and hour."""
    BOTH = "both"
    """Both forms, from one reading of the log."""
    ICEBERG = "iceberg"
    """The topic's Iceberg table."""

    def fed(self, topic: TopicName) -> tuple[TopicName, ...]:
        """Return the tables that messages are written to. The first is *the* table of the topic: what commits mean."""
        match self:
            case StorageFormat.PARQUET:
                return (copy_of(topic),)
            case StorageFormat.BOTH:
                return (topic, copy_of(topic))
            case StorageFormat.ICEBERG:
                return (topic,)

    def all_tables(self, topic: TopicName) -> tuple[TopicName, ...]:
        """Return both tables that a topic can have, in the order of `fed`."""
        return (copy_of(topic), topic) if self is StorageFormat.PARQUET else (topic, copy_of(topic))


class SubscriptionType(ClosedSet):
    """How a subscription divides messages among its consumers."""

    EXCLUSIVE = "exclusive"
    """One consumer; a second one is refused."""
    SHARED = "shared"
    """Each message goes to one consumer, in turns."""
    FAILOVER = "failover"
    """All messages go to the consumer that came first; the next one takes over when it ends."""
    KEY_SHARED = "key-shared"
    """All messages of a key go to the same consumer, in order."""

    @classmethod
    def what(cls) -> str:
        return "a type of subscription"

    @property
    def acks_cumulatively(self) -> bool:
        """Whether one acknowledgement can cover all messages before it: only if one consumer gets all messages."""
        return self in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


class SyncMode(ClosedSet):
    """When a written frame counts as durable."""

    ALWAYS = "always"
    """After `fdatasync`."""
    INTERVAL = "interval"
    """Once written. A sync follows at intervals. A power cut can lose the last interval, even if it was read."""
    OS = "os"
    """Once written. The operating system syncs at a time of its choice."""
