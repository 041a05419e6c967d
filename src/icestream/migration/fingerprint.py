"""A checksum of rows that depends on their values alone.

Arrow can hold equal values in many ways: sliced, with any bytes in place of a null, cut into other batches. So each
column is hashed as three streams: which values are null, how long strings and lists are, and the values. Where batches
were cut does not matter. Floats count by their bits: a NaN equals itself.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
import xxhash

from icestream.migration.nested import dense_parts, text_bytes

_BITS_PER_BYTE = 8


class Fingerprint:
    """The checksum of rows with one schema, which come batch by batch."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self._columns = [_Column(field.type) for field in schema]

    def update(self, columns: Sequence[pa.Array]) -> None:
        for hashed, column in zip(self._columns, columns, strict=True):
            hashed.update(column)
        self.rows += len(columns[0]) if columns else 0

    def digest(self) -> str:
        """Return the checksum of all rows so far."""
        whole = xxhash.xxh3_128(self.rows.to_bytes(8, "little"))
        for column in self._columns:
            whole.update(column.digest())
        return str(whole.hexdigest())


class _Column:
    def __init__(self, kind: pa.DataType) -> None:
        self._present = xxhash.xxh3_128()
        self._lengths = xxhash.xxh3_128()
        self._values = xxhash.xxh3_128()
        self._inner = [_Column(kind.field(number).type) for number in range(kind.num_fields)]
        if kinds.is_map(kind):
            self._inner = [_Column(kind.key_type), _Column(kind.item_type)]

    def digest(self) -> bytes:
        whole = xxhash.xxh3_128()
        for part in (self._present, self._lengths, self._values):
            whole.update(part.digest())
        for inner in self._inner:
            whole.update(inner.digest())
        return bytes(whole.digest())

    def update(self, array: pa.Array) -> None:
        self._present.update(array.is_valid().cast(pa.uint8()).to_numpy())
        dense = array.drop_null() if array.null_count else array
        if kinds.is_large_string(dense.type) or kinds.is_large_binary(dense.type):
            dense = dense.cast(pa.binary())
        kind = dense.type
        if kinds.is_nested(kind):
            lengths, parts = dense_parts(dense)
            self._lengths.update(lengths.data)
            for inner, part in zip(self._inner, parts, strict=True):
                inner.update(part)
        elif kinds.is_binary(kind) or kinds.is_string(kind):
            self._lengths.update(pc.binary_length(dense).cast(pa.int64()).to_numpy())
            self._values.update(text_bytes(dense))
        elif not kinds.is_null(kind):
            self._values.update(_fixed_bytes(dense))


def _fixed_bytes(array: pa.Array) -> Any:
    if kinds.is_boolean(array.type):
        array = array.cast(pa.uint8())
    data = array.buffers()[1]
    if data is None or not len(array):
        return b""
    width = array.type.bit_width // _BITS_PER_BYTE
    return memoryview(data)[array.offset * width : (array.offset + len(array)) * width]
