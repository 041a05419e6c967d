"""Proves that a topic's log, cloud objects and table hold the same messages, each offset once, in order.

What is proved, for each topic:

- the table belongs to the log's stream, and its ledger is not ahead of the log;
- every offset below the ledger stands in the table exactly once, and none above it;
- where the log still holds a message, all columns of its row are equal to it;
- offsets that the table lacks are those that a repair of the log has given up: the log says so or, where it is pruned,
  the table's own properties;
- the rows of each file are in offset order (or its row groups sorted, where the topic asks for it), its description
  tells the truth, and in a table without partitions no two files overlap;
- where a topic has plain Parquet files as well, or instead, the table that describes them holds all this too;
- the log itself can be read to its end, every frame checked; one that is known to have been there is there;
- the objects in the cloud follow on each other, their head counts them rightly, each is there with its size, and every
  frame, trailer and index in them is sound; where the log holds the same messages, they are equal.

Nothing is changed. Log, cloud and table are read once, side by side, a batch of each at a time. The log comes from a
broker, or from the files of one that is stopped: `logs`. `joined` puts what the cloud holds before it, `reconcile`
compares that with the table, `layout` looks at the table's files, `cloud_audit` at the objects.
"""

from icestream.storage.verify.findings import Finding, Verification
from icestream.storage.verify.logs import AuditedLogs, BrokerLogs, Clouds, DirectoryLogs, LogView
from icestream.storage.verify.tables import open_tables
from icestream.storage.verify.verify import verify_topic

__all__ = [
    "AuditedLogs",
    "BrokerLogs",
    "Clouds",
    "DirectoryLogs",
    "Finding",
    "LogView",
    "Verification",
    "open_tables",
    "verify_topic",
]
