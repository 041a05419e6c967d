"""Table maintenance: Iceberg's own procedures, run by Spark in a process of their own, off the commit path.

What it guarantees:

- No message is lost, doubled or changed, and the ledger stays as it is: the procedures replace files by files of the
  same rows, and drop what no snapshot needs. Table properties are not touched.
- Offset order is kept: compaction takes neighbouring files together and sorts them, so that the files of a table
  without partitions never overlap in their offsets.
- Commits of the pipeline go first: a commit that finds the table changed commits the same files again at once, while a
  maintenance step that loses to it plans anew, after a pause that grows, and is given up after a few tries until the
  next run.
- Branches and tags keep their snapshots. A file that no snapshot names is removed only when it is older than any commit
  takes.
- Nothing is done that would change nothing: `plan` decides from metadata alone, and Spark is started for the first
  step that needs it.

`run.Maintenance` runs the steps; `schedule.Schedule` has the broker run `icestream maintain` now and then, and needs
none of Spark's packages.
"""
