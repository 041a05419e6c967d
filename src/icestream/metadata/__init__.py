"""The metadata store: small records that brokers must agree on. Topics, subscription progress, object descriptors.

Guarantees of every store:

* A change is durable when its call returns (SQLite: committed and synced; etcd: on a majority of its members). Every
  later call of any client sees it.
* A transaction happens completely or not at all, also if the process or the machine dies in it. Its conditions hold at
  the revision of its change: of several writers that compare and swap, none overwrites another's update.
* Revisions grow with every change. A watch returns each change under its prefix once, in revision order, from any kept
  revision on. If changes are no longer kept, it raises `CompactedError`; it never skips any.
* No reader sees a key under a lease after the lease has ended, also if its holder was killed. Without etcd, deadlines
  are wall-clock times: a clock that is set forward ends leases early.
* Memory is bounded: keys (1 KiB), values (1 MiB), transactions, pages, the history of changes for watches.
* Damage raises `DamagedError`. An empty or foreign file is never used as a new store.

Example::

    with open_metadata_store(sqlite_path=Path("metadata.db")) as store:
        entry = store.get("/topics/default/events")
        store.compare_and_swap(entry.key, entry.mod_revision, b"...")

`store` has the protocol; `memory`, `sqlite` and `etcd` implement it. `keys` has the layout of every key. `sqlite`
describes what lies on disk.
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
