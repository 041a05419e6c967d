"""Topics as Iceberg tables. The only package that knows the Iceberg library.

What it guarantees:

- Each message stands in the table once. A commit appends files and moves the table's *ledger* (stream, epoch, committed
  offset) in one catalog commit that names the state it was planned on; a stale one is refused, and when the outcome of
  one is not known the ledger tells. `commit` has the steps.
- A table that belongs to another stream, or whose columns do not fit the topic's, is refused and never written.
- Everything that a commit names is durable before it is named.
- Types lose no value: `types` says what becomes what, and `check_table_schema` refuses the rest when a topic is made.
- Metadata stays small by itself: commits drop old snapshots and merge small manifests.

`Tables` finds and makes tables; `TopicTable` is one loaded state, which commits; `TableWriter` goes to wherever the
data is, writes files, and needs no catalog. On disk it is plain Iceberg: docs/formats/table.md.
"""

from icestream.table.history import AddedFile
from icestream.table.ledger import Ledger
from icestream.table.scan import ReadLimits
from icestream.table.schema import check_table_schema
from icestream.table.spark_catalog import spark_catalog_options
from icestream.table.tables import Tables, TableSpec
from icestream.table.topic_table import TopicTable
from icestream.table.writer import TableWriter, WrittenFile

__all__ = [
    "AddedFile",
    "Ledger",
    "ReadLimits",
    "TableSpec",
    "TableWriter",
    "Tables",
    "TopicTable",
    "WrittenFile",
    "check_table_schema",
    "spark_catalog_options",
]
