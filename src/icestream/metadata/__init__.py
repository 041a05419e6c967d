"""Small facts that brokers must agree on: topics, owners, subscription progress, object descriptors.

What a store guarantees, whichever it is:

* A change that returned is durable (SQLite: committed and synced; etcd: on a majority of its members) and seen by every
  later call of any client.
* A transaction happens whole or not at all, also when the process or the machine dies in it, and conditions hold at
  the very revision of the change: of any number of writers that compare and swap, none loses another's update.
* Revisions grow with every change. A watch hands out each change under its prefix once, in revision order, from any
  kept revision on; changes that are no longer kept are a CompactedError, never a hole.
* A key under a lease is never seen after the lease ended, also when its holder was killed. Without etcd, deadlines are
  wall-clock times, so a clock that is set forward ends leases early.
* Memory is bounded: keys (1 KiB), values (1 MiB), transactions, pages, the history behind watches.
* Damage is a DamagedError; an empty or foreign file is never taken for a fresh store.

`store` is the protocol, `memory`, `sqlite` and `etcd` implement it, `sqlite_file` describes what lies on disk, `keys`
has every key's layout.
"""

from icestream.metadata import keys
from icestream.metadata.etcd.options import EtcdOptions
from icestream.metadata.factory import open_metadata_store
from icestream.metadata.memory import MemoryMetadataStore
from icestream.metadata.sqlite import SqliteMetadataStore
from icestream.metadata.store import (
    Absent,
    CompactedError,
    Condition,
    Delete,
    Entry,
    Event,
    Exists,
    Lease,
    LeaseExpiredError,
    MetadataStore,
    Operation,
    OutcomeUnknownError,
    Put,
    RevisionIs,
    TransactionResult,
    ValueIs,
    Watch,
    scan,
)

__all__ = [
    "Absent",
    "CompactedError",
    "Condition",
    "Delete",
    "Entry",
    "EtcdOptions",
    "Event",
    "Exists",
    "Lease",
    "LeaseExpiredError",
    "MemoryMetadataStore",
    "MetadataStore",
    "Operation",
    "OutcomeUnknownError",
    "Put",
    "RevisionIs",
    "SqliteMetadataStore",
    "TransactionResult",
    "ValueIs",
    "Watch",
    "keys",
    "open_metadata_store",
    "scan",
]
