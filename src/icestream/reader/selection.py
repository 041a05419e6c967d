"""Which columns and rows of a topic a reader wants."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from icestream.model.errors import InvalidRequestError
from icestream.model.messages import conform

if TYPE_CHECKING:
    from icestream.model.filters import Filter


@dataclass(frozen=True)
class Selection:
    stream: pa.Schema
    """The topic's schema when the reader was opened: what its batches have, whatever columns the topic gains later."""
    columns: tuple[str, ...] | None = None
    """Besides the offset; None for all."""
    where: "Filter | None" = None

    @classmethod
    def of(
        cls, stream: pa.Schema, columns: Sequence[str] | None = None, where: "Filter | str | None" = None
    ) -> "Selection":
        """Checked against the topic's columns."""
        if columns is not None and (unknown := sorted(set(columns) - set(stream.names))):
            raise InvalidRequestError(
                f"the topic has no columns {', '.join(unknown)}",
                operation="read",
                remedy=f"choose among {', '.join(stream.names)}",
            )
        if columns is not None and not 0 < len(columns) == len(set(columns)):
            raise InvalidRequestError("columns are one or more, each once", operation="read")
        if isinstance(where, str):
            # The SQL parser takes a moment to import, which those who do not filter need not spend.
            from icestream.model.filters import Filter  # noqa: PLC0415

            where = Filter.parse(where)
        if where is not None:
            where.check(stream)
        return cls(stream, None if columns is None else tuple(columns), where)

    @cached_property
    def schema(self) -> pa.Schema:
        """Of the reader's batches: the offset, and the columns asked for."""
        if self.columns is None:
            return self.stream
        offset = self.stream.field(0)
        return pa.schema([offset, *(self.stream.field(name) for name in self.columns if name != offset.name)])

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What is wanted of a batch that has all columns of some version of the topic's schema."""
        if self.where is not None:
            batch = self.where.apply(conform(batch, self.stream))
        return conform(batch, self.schema)
