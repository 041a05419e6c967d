"""One of several streams of batches that are read side by side."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc


class Side:
    """A stream in offset order, with the batch that is being used up."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.batch: pa.RecordBatch | None = None
        self.advance()

    def advance(self) -> None:
        self.batch = next((batch for batch in self._batches if batch.num_rows), None)

    @property
    def first(self) -> int:
        assert self.batch is not None
        return int(self.batch.column(0)[0].as_py())

    @property
    def last(self) -> int:
        assert self.batch is not None
        return int(self.batch.column(0)[-1].as_py())

    def take(self, through: int) -> pa.RecordBatch:
        """The rows of the batch up to an offset."""
        batch = self.batch
        assert batch is not None
        count = batch.num_rows
        if self.last > through:
            count = pc.sum(pc.less_equal(batch.column(0), through)).as_py()
        if count == batch.num_rows:
            self.advance()
        else:
            self.batch = batch.slice(count)
        return batch.slice(0, count)
