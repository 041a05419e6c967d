"""Topics as Iceberg tables. The only package that uses the Iceberg library.

What it guarantees:

- Each message stands in the table exactly once. A commit appends files and moves the table's *ledger* (stream, epoch,
  committed offset) in one catalog commit that names the state it was planned on. The catalog refuses a stale commit.
  After an unknown outcome the ledger tells whether it happened. `commit` has the steps.
- A table of another stream, or one whose columns do not fit the topic's, is refused and never written.
- Every file that a commit names is durable before the commit.
- Types lose no value. `schema` has the mapping, and `check_table_schema` refuses the other types when a topic is
  created.
- Metadata stays small: commits drop old snapshots and merge small manifests.
- Rows are read in offset order, whatever the order of files, and of rows inside them.

`Tables` finds and creates tables. `TopicTable` is one loaded state of a table; it reads and commits. `TableWriter` is
sent to the workers that hold the data; it writes files and needs no catalog. On disk it is plain Iceberg:
docs/formats/table.md. A topic's Parquet copy is a table too: `parquet_copy`.

Example::

    table = Tables(settings).open(TableSpec(topic, stream_id, epoch, schema))
    files = table.writer().write(batches, max_memory_bytes=64 << 20)
    table = table.commit(files, start=0, end=1_000, epoch=epoch)
    for batch in table.scan():
        ...
"""

from icestream.table.bloom import filter_notes
from icestream.table.contents import (
    StoredFile,
    TableContents,
    quarantining_topics,
    read_contents,
    topics_with_tables,
)
from icestream.table.history import AddedFile
from icestream.table.ledger import Ledger
from icestream.table.planning import FilePlan
from icestream.table.quarantine import (
    QuarantineRecord,
    copy_entry,
    mark_retried,
    quarantine_frame,
    read_frame,
    read_record,
    read_retried,
)
from icestream.table.registration import Registration, find_registration, register
from icestream.table.removed_rows import RemovedRows
from icestream.table.scan import OpenFile, ReadLimits, RowGroup, ScanRequest, ordered_scan
from icestream.table.schema import check_table_schema, stored_fields, to_stored
from icestream.table.spark_catalog import spark_catalog_options
from icestream.table.tables import Tables, TableSpec, TopicTable
from icestream.table.trial_write import sample_row, trial_writer
from icestream.table.writer import TableWriter, WrittenFile, write_to_tables

__all__ = [
    "AddedFile",
    "FilePlan",
    "Ledger",
    "OpenFile",
    "QuarantineRecord",
    "ReadLimits",
    "Registration",
    "RemovedRows",
    "RowGroup",
    "ScanRequest",
    "StoredFile",
    "TableContents",
    "TableSpec",
    "TableWriter",
    "Tables",
    "TopicTable",
    "WrittenFile",
    "check_table_schema",
    "copy_entry",
    "filter_notes",
    "find_registration",
    "mark_retried",
    "ordered_scan",
    "quarantine_frame",
    "quarantining_topics",
    "read_contents",
    "read_frame",
    "read_record",
    "read_retried",
    "register",
    "sample_row",
    "spark_catalog_options",
    "stored_fields",
    "to_stored",
    "topics_with_tables",
    "trial_writer",
    "write_to_tables",
]
