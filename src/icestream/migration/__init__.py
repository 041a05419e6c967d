"""Existing Parquet files brought into a topic, and so into its table.

Rows get their offsets from the log, as all rows do: the table's order and its exactly-once rule rest on them, so files
that were written without offsets cannot be put into the table as they are. A migration publishes them to the broker as
Arrow batches, and the pipeline commits them like everything else. Live producers and readers go on meanwhile, and
readers see both.

Guarantees:

- Each row of a file is in the topic once, in the file's order, whatever is killed and run again, and however many
  migrations of the same files run at once, whichever folders they name. `publish` says why. Copies of a file in other
  places are other files; they are refused where they are noticed, and never pass unsaid (`judge`).
- The journal is the topic itself (`journal`): there is nothing else that could be lost or disagree.
- A file that is damaged, or has a value that does not fit, leaves no row behind; the other files are not held up.
- What is reported as verified was read back, from the table once it is committed, and has the file's rows in the
  file's order with the same checksum (`fingerprint`).
- Memory is bounded by a batch, whatever the size of files and row groups.

From the outside in: `run` has the steps; `sources` finds files (by `patterns`), `parquet_files` reads one, `mapping`
and `convert` make the topic's columns of its own and of its folders' names (`partitions`), `target` is the topic,
`judge` decides what is to be done with a file, `publish` does it, `verify` proves it.
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
