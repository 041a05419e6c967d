"""In which form a broker keeps its topics: as Iceberg tables, as plain Parquet files, or as both.

The plain files of a topic are described by an Iceberg table of their own, its *Parquet copy*, which has the topic's
name with `__parquet` behind it. So there are one or two tables to a topic, with a ledger each: those that the format
feeds, and perhaps one that an earlier format has left, which readers still look into.
"""

from enum import Enum

from icestream.model.names import COPY_SUFFIX, TopicName


class StorageFormat(Enum):
    PARQUET = "parquet"
    """Plain Parquet files by date and hour."""
    BOTH = "both"
    """The two, from one reading of the log."""
    ICEBERG = "iceberg"
    """The topic's Iceberg table."""

    def fed(self, topic: TopicName) -> tuple[TopicName, ...]:
        """The tables that messages are written to. The first is *the* table of the topic: what commits mean."""
        match self:
            case StorageFormat.PARQUET:
                return (copy_of(topic),)
            case StorageFormat.BOTH:
                return (topic, copy_of(topic))
            case StorageFormat.ICEBERG:
                return (topic,)

    def all_tables(self, topic: TopicName) -> tuple[TopicName, ...]:
        """Both tables that a topic can have, the first as above."""
        return (copy_of(topic), topic) if self is StorageFormat.PARQUET else (topic, copy_of(topic))


def copy_of(topic: TopicName) -> TopicName:
    """What the catalog calls the topic's Parquet copy. No topic can have such a name."""
    return TopicName(topic.namespace, topic.name + COPY_SUFFIX)


def is_copy(table: TopicName) -> bool:
    return table.name.endswith(COPY_SUFFIX)


def copied(table: TopicName) -> TopicName:
    """The topic that a table belongs to."""
    return TopicName(table.namespace, table.name.removesuffix(COPY_SUFFIX))
