"""Maps without repeated keys, as DuckDB wants them; Arrow, and so a producer, may repeat a key.

The first value of a key counts, as in filters. Batches without repetitions, which are nearly all, are not copied.
"""

from typing import Any

import numpy as np
import pyarrow as pa


def with_unique_keys(maps: pa.MapArray) -> pa.MapArray:
    if pa.types.is_nested(maps.type.key_type) or not _repeats(maps):
        return maps
    return pa.array([None if pairs is None else _firsts(pairs) for pairs in maps.to_pylist()], maps.type)


def _firsts(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return list(found.items())


def _repeats(maps: pa.MapArray) -> bool:
    """Whether a map has a key twice: the number of its map and that of its key, as one number, come twice."""
    offsets = maps.offsets.to_numpy()
    sizes = np.diff(offsets)
    if not len(sizes) or sizes.max() <= 1:
        return False
    keys = maps.keys.slice(offsets[0], offsets[-1] - offsets[0]).dictionary_encode()
    codes = keys.indices.to_numpy().astype(np.int64)
    numbers = np.repeat(np.arange(len(sizes)), sizes) * len(keys.dictionary) + codes
    numbers.sort(kind="stable")
    return bool((numbers[1:] == numbers[:-1]).any())
