"""Key slots: the same key always falls into the same slot. Whole columns are hashed at a time.

A message without a key has no order to keep: it falls into a slot by its offset, so that such messages are spread
evenly over the consumers.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.model.errors import InvalidRequestError
from icestream.subscription.offset_ranges import Offsets

SLOTS = 4_096
Slots = npt.NDArray[np.uint16]
_Hashes = npt.NDArray[np.uint64]

_KEY = "key"
_WEIGHTS = np.random.default_rng(0x1CE57).integers(0, 1 << 63, 1_024, np.uint64) | np.uint64(1)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)


def check_has_key(schema: pa.Schema) -> None:
    """Raise unless messages of this schema have a key that can be hashed."""
    index = schema.get_field_index(_KEY)
    if index < 0 or pa.types.is_nested(schema.field(index).type):
        raise InvalidRequestError(
            "a key-shared subscription needs a column `key` of a plain type",
            operation="subscription options",
            remedy="add the column to the topic's schema, or use type shared",
        )


def slots_of(batch: pa.RecordBatch, offsets: Offsets) -> Slots:
    keys = batch.column(batch.schema.get_field_index(_KEY))
    spread = _mixed(offsets.astype(np.uint64))
    if keys.null_count == len(keys):
        hashes = spread
    else:
        hashes = _hashes(keys)
        if keys.null_count:
            hashes = np.where(keys.is_null().to_numpy(zero_copy_only=False), spread, hashes)
    return (hashes % np.uint64(SLOTS)).astype(np.uint16)


def _hashes(keys: pa.Array) -> _Hashes:
    if pa.types.is_integer(keys.type):
        whole: Any = pc.fill_null(keys, 0).to_numpy(zero_copy_only=False)
        return _mixed(whole.astype(np.int64).view(np.uint64))
    if not pa.types.is_large_binary(keys.type):
        if not (pa.types.is_binary(keys.type) or pa.types.is_string(keys.type)):
            keys = keys.cast(pa.string())
        keys = keys.cast(pa.large_binary())
    _, ends, data = keys.buffers()
    bounds = np.frombuffer(ends, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    first, last = int(bounds[0]), int(bounds[-1])
    lengths = np.diff(bounds)
    text = np.frombuffer(data, np.uint8)[first:last] if data is not None and last > first else np.empty(0, np.uint8)
    # The sum of each byte times a weight of its index in the key. Sums wrap around; their differences stay right.
    index = (np.arange(last - first) - np.repeat(bounds[:-1] - first, lengths)) % len(_WEIGHTS)
    sums = np.concatenate(
        (np.zeros(1, np.uint64), np.cumsum((text.astype(np.uint64) + np.uint64(1)) * _WEIGHTS[index]))
    )
    return _mixed(sums[bounds[1:] - first] - sums[bounds[:-1] - first] + lengths.astype(np.uint64))


def _mixed(values: _Hashes) -> _Hashes:
    """Spread near values far apart (the finaliser of SplitMix64)."""
    values = (values ^ (values >> _SHIFT_1)) * _MIX_1
    values = (values ^ (values >> _SHIFT_2)) * _MIX_2
    return values ^ (values >> _SHIFT_3)
