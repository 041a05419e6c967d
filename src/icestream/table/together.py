"""One stream of batches into several tables: read once, decoded once, written to each."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import pyarrow as pa

from icestream.model.messages import slice_from
from icestream.table.writer import TableWriter
from icestream.table.written import WrittenFile


def write_together(
    targets: Sequence[tuple[TableWriter, int]], batches: Iterable[pa.RecordBatch], *, max_memory_bytes: int
) -> list[list[WrittenFile]]:
    """The files of each table; a table takes the messages from its own first offset on.

    The writers share the memory. After an error none of the files of any table is left.
    """
    with ExitStack() as ending:
        share = max_memory_bytes // len(targets)
        writings = [
            (ending.enter_context(writer.writing(max_memory_bytes=share)), first_offset)
            for writer, first_offset in targets
        ]
        for batch in batches:
            for writing, first_offset in writings:
                writing.add(slice_from(batch, first_offset))
        return [writing.finish() for writing, _ in writings]
