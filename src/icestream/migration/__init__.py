"""Migration: brings existing Parquet files into a topic, and so into its table.

Rows get their offsets from the log. The table's order and its exactly-once rule rest on them, so files without offsets
cannot go into the table as they are. A migration publishes their rows to the broker as Arrow batches, and the pipeline
commits them as it commits all messages. Producers and readers go on meanwhile; readers see both.

Guarantees:

- Each row of a file is in the topic once, in the file's order, whatever is killed and run again, and however many
  migrations of the same files run at once. `publish` says why. A copy of a file at another path is another file: it is
  refused or reported (`journal.DuplicateCheck`).
- The journal is the topic itself (`journal`). There is no other state that could be lost or disagree.
- A file that is damaged, or has a value that does not fit, leaves no row behind, and does not hold up other files.
- A file is reported as verified if its rows were read back, from the table once they are committed, in the file's order
  and with the same checksum (`fingerprint`).
- Memory is bounded by a batch, whatever the size of files and row groups.

    with Client() as client, contextlib.closing(open_source("/data/events", settings)) as source:
        report = Migration(client, source, settings, MigrationRequest(topic="default/events")).run()

Modules: `run` has the steps; `sources` finds files, `parquet_files` reads one; `mapping` turns its columns, and those
in its folders' names, into the topic's; `target` is the topic; `journal` says what the topic has of a file and what is
to be done; `publish` sends rows; `verify` reads them back.
"""

from icestream.migration.mapping import ColumnOptions
from icestream.migration.report import FileReport, FileState, MigrationReport
from icestream.migration.run import WAITING, Migration, MigrationRequest, ProgressListener
from icestream.migration.sources import FileSource, open_source

__all__ = [
    "WAITING",
    "ColumnOptions",
    "FileReport",
    "FileSource",
    "FileState",
    "Migration",
    "MigrationReport",
    "MigrationRequest",
    "ProgressListener",
    "open_source",
]
