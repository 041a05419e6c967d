"""The Parquet copy of a topic: plain files in folders by date and hour, for engines without a catalog.

    {storage.parquet_path}/{namespace}/{topic}/date=2026-11-30/hour=09/{table}-{file}.parquet

An Iceberg table of its own describes the copy. It is named like the topic with `__parquet` appended, and has its own
ledger. Apart from the layout of its files it is a table like any other.

What it guarantees:

- Each committed message stands in exactly one file. A reader of the folders sees no message twice, except between a
  failed pass and its clean-up.
- A file has its name only when it is complete.
- Files of others in these folders are never touched: the name of a copy's file begins with the id of its table.

`layout` says where files lie. `orphans` removes files that were written and never committed. Other packages use the
names that are exported here, and need not know folders.
"""

from icestream.table.parquet_copy.layout import data_path
from icestream.table.parquet_copy.orphans import discard_files, find_copy_orphans, holds_files, remove_copy_orphans

__all__ = ["data_path", "discard_files", "find_copy_orphans", "holds_files", "remove_copy_orphans"]
