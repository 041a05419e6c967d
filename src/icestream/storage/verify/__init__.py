"""Verification: a topic's log, cloud objects and table hold the same messages, each offset once, in order.

For each topic it checks that

- the table belongs to the log's stream, and its ledger is not ahead of the log;
- every offset below the ledger is in the table exactly once, and none above it;
- where the log still holds a message, all columns of its row are equal to it;
- offsets that the table lacks are lost: the log says so or, where it is pruned, the table's own properties;
- the rows of each file are in offset order (or its row groups are sorted, if the topic has a sort order), the manifests
  describe the file correctly, and in a table without partitions no two files overlap;
- if a topic has a Parquet copy as well, or instead, the table that describes it passes the same checks;
- the log can be read to its end, every frame checked, and a log that existed is not missing;
- the cloud objects follow on each other, their head counts them correctly, each exists with its size, and every frame,
  trailer and index is sound; where the log has the same messages, they are equal.

Nothing is changed. Log, cloud and table are read once, in parallel, a batch of each at a time. `logs` reads the log of
a running broker, or the files of a stopped one. `cloud` checks the objects, and joins them with the log. `tables`
checks the table's files. `reconcile` compares log and cloud with the table. `findings` is the result.
"""

from icestream.storage.verify.cloud import ObjectCheck
from icestream.storage.verify.findings import Finding, Verification
from icestream.storage.verify.logs import AuditedLogs, BrokerLogs, Clouds, DirectoryLogs, LogView
from icestream.storage.verify.tables import FindTable, find_all, open_tables
from icestream.storage.verify.verify import verify_topic

__all__ = [
    "AuditedLogs",
    "BrokerLogs",
    "Clouds",
    "DirectoryLogs",
    "FindTable",
    "Finding",
    "LogView",
    "ObjectCheck",
    "Verification",
    "find_all",
    "open_tables",
    "verify_topic",
]
