"""One ordered stream of a topic's messages from every tier that holds them.

What it guarantees
------------------
* A reader gets each message from its offset on once and in offset order, whichever tier holds it, while commits,
  rotation, pruning, compaction and expiry go on. Messages that a repair of the log gave up are in no tier; readers skip
  them.
* A reader's position is an offset. Nothing else has to be kept to read on later, with this broker, another one or none.
* What the log or the cloud still has is read without the catalog.
* Memory is bounded by bytes: about `max_bytes` for a reader, `ReadLimits` for a table scan, what is read ahead in cloud
  objects, and one limit for the decoded tails of all topics. A reader never waits for another one, except for the
  decoding of a block that both want.

The tiers, nearest first::

    decoded tail ◂ cache ◂ log        LogTier
    cloud objects                     CloudTier, if there is an object store
    table                             TableTier, unless the topic has none
    its other table                   TableTier, while a topic moves between formats; see `StorageFormat`

The handover: the offset alone decides. The first tier that holds it, and can read it, serves. That read ends where a
nearer tier begins, or where the tier's own messages end; then the reader chooses again. A reader of the log or of
objects has a lease, which delays retention for a bounded time. A reader that loses its lease continues from a farther
tier, which has what was pruned. The table serves what a damaged or unreachable object holds. Only an offset that no
tier can read is an error.

```python
reader = topic.reader(StartPosition.earliest())
while batches := reader.read():  # empty at the durable end
    for batch in batches:
        ...
reader.close()
```
"""

from icestream.reader.cloud_tier import CloudTier
from icestream.reader.log_tier import LogTier, Tail, Tails
from icestream.reader.position import resolve
from icestream.reader.stateless import StatelessReader, farthest
from icestream.reader.table_tier import TableTier, TableTierRead
from icestream.reader.tiers import DEFAULT_READ_BYTES, Selection, Tier, TierRead, TopicReader

__all__ = [
    "DEFAULT_READ_BYTES",
    "CloudTier",
    "LogTier",
    "Selection",
    "StatelessReader",
    "TableTier",
    "TableTierRead",
    "Tail",
    "Tails",
    "Tier",
    "TierRead",
    "TopicReader",
    "farthest",
    "resolve",
]
