"""Table maintenance: Iceberg's own procedures, run by Spark in a separate process, off the commit path.

Guarantees:

- No message is lost, doubled or changed, and the ledger stays as it is: the procedures replace files by files of the
  same rows, and drop what no snapshot needs. Table properties are not touched.
- Offset order is kept: compaction takes neighbouring files together and sorts them, so that the files of a table
  without partitions never overlap in their offsets.
- Commits of the pipeline have priority. A pipeline commit that finds the table changed commits the same files again at
  once. A maintenance step that loses plans again, after growing pauses, and gives up after a few tries until the next
  run.
- Branches and tags keep their snapshots. A file that no snapshot names is removed only when it is older than any commit
  takes.
- `plan` decides from metadata alone whether there is something to do. Spark starts for the first step that needs it.

`run.Maintenance` runs the steps; `schedule.Schedule` runs `icestream maintain` as the broker's child at intervals, and
needs none of Spark's packages.
"""
