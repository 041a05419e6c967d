"""One ordered stream of a topic from every tier that holds messages.

What it guarantees
------------------
* A reader gets each message from its offset on once and in offset order, whichever tier it lies in, while commits,
  rotation, pruning, compaction and expiry go on. What a repair of the log gave up is in no tier and is passed over.
* Its place is an offset. Nothing else has to be kept to read on later, with this or another broker, or with none.
* What the log or the cloud still has is read without the catalog.
* Memory is bounded by bytes: a piece of about `max_bytes` for a reader, `ReadLimits` for a table scan, what is read
  ahead in cloud objects, and one decoded tail for all topics. A reader never waits for another, except for the decoding
  of a piece that both want.

The tiers, nearest first::

    decoded tail ◂ cache ◂ log        LogTier
    cloud objects                     CloudTier, where there is an object store
    table                             TableTier, unless the topic has none
    its other table                   TableTier, while a topic moves between formats; see `StorageFormat`

Each step is decided once, by the offset: the first tier that holds it, and can read it, serves. A step ends where a
nearer tier begins, or where what the tier was known to hold ends; then it is decided anew. While a reader is in the log
or in objects it has a lease, which holds retention up for a bounded time; one that loses it goes on from a farther
tier, which has what was pruned. An object that is damaged or cannot be reached is left to the table; only what no other
tier has is an error.
"""

from icestream.reader.cloud_tier import CloudTier
from icestream.reader.context import ReadContext
from icestream.reader.handover import DEFAULT_READ_BYTES, TopicReader
from icestream.reader.log_tier import LogTier
from icestream.reader.position import resolve
from icestream.reader.stateless import StatelessReader
from icestream.reader.table_tier import TableTier
from icestream.reader.tail import Tail, Tails
from icestream.reader.tiers import Selection, Tier, TierRead

__all__ = [
    "DEFAULT_READ_BYTES",
    "CloudTier",
    "LogTier",
    "ReadContext",
    "Selection",
    "StatelessReader",
    "TableTier",
    "Tail",
    "Tails",
    "Tier",
    "TierRead",
    "TopicReader",
    "resolve",
]
