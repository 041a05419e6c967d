"""Sets of attributes as three columns: one to query, two that keep it exact.

- `attributes`, a map from key to the value's text (see `icestream.telemetry.values`)
- `attributes_types`, one byte for each entry of the map, in its order: the type of the value
- `attributes_otlp`, null unless the two say less than was sent, because a value is nested or empty, or a key is there
  twice: then the serialized `KeyValue` messages, all of them in their order

A map has each key once, as engines refuse to read others; of several entries with the same key it has the first.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from icestream.model.errors import InvalidMessageError
from icestream.telemetry.arrays import Ints, Mask, offsets_of, owners_of, valid
from icestream.telemetry.schemas import ATTRIBUTES, EXACT
from icestream.telemetry.values import COMMON, Texts, set_value, texts_of
from icestream.telemetry.wire import decode_key_values

_COUNTED_PER_ENTRY = 32
"""Up to so many pairs of row and key for each entry there is, a table of counts is quicker than sorting."""


def attribute_columns(sources: Sequence[pa.ListArray], max_depth: int) -> list[list[pa.Array]]:
    """For each source, which has lists of serialized `KeyValue` messages: map, types and exact form.

    All are decoded at once, as most of what a small source costs is the call.
    """
    filled = [source for source in sources if len(source.values)]
    decoded = iter(_decode_together(filled, max_depth) if filled else ())
    return [next(decoded) if len(source.values) else _no_attributes(len(source)) for source in sources]


def _decode_together(sources: Sequence[pa.ListArray], max_depth: int) -> Iterator[list[pa.Array]]:
    columns, start = _columns(pa.concat_arrays(sources), max_depth), 0
    for source in sources:
        yield [column.slice(start, len(source)) for column in columns]
        start += len(source)


def named(columns: list[pa.Array], name: str = "attributes") -> dict[str, pa.Array]:
    return dict(zip((name, f"{name}_types", f"{name}_otlp"), columns, strict=True))


def _columns(raw: pa.ListArray, max_depth: int) -> list[pa.Array]:
    entries = decode_key_values(raw.values)
    keys, value, key_index = entries.columns
    texts = texts_of(
        [value.field(number) for number in range(COMMON)],
        valid(value),
        lambda rows: (KeyValue.FromString(data).value for data in raw.values.take(rows).to_pylist()),
        max_depth,
    )
    owners = owners_of(raw)
    kept = _first_of_each_key(owners, keys)
    odd_rows = np.zeros(len(raw), np.bool_)
    odd_rows[owners[texts.odd | (key_index.to_numpy() != 0)]] = True
    if kept is not None:
        odd_rows[owners[~kept]] = True
    return [*_readable(raw, keys, texts, owners, kept), _exact(raw, odd_rows)]


def _no_attributes(count: int) -> list[pa.Array]:
    places = pa.py_buffer(np.zeros(count + 1, np.int32))
    none = pa.array([], pa.string())
    return [
        pa.MapArray.from_arrays(pa.Array.from_buffers(pa.int32(), count + 1, [None, places]), none, none),
        pa.Array.from_buffers(pa.binary(), count, [None, places, pa.py_buffer(b"")]),
        pa.nulls(count, EXACT),
    ]


def _first_of_each_key(owners: Ints, keys: pa.Array) -> Mask | None:
    """Which entries are the first with their key in their list; none where all are."""
    encoded = keys.dictionary_encode()
    names = len(encoded.dictionary)
    pairs = owners * names + encoded.indices.to_numpy()
    if pairs[-1] < _COUNTED_PER_ENTRY * len(pairs) and np.bincount(pairs).max() == 1:
        return None
    firsts = np.unique(pairs, return_index=True)[1]
    if len(firsts) == len(pairs):
        return None
    kept = np.zeros(len(pairs), np.bool_)
    kept[firsts] = True
    return kept


def _readable(raw: pa.ListArray, keys: pa.Array, texts: Texts, owners: Ints, kept: Mask | None) -> list[pa.Array]:
    text, types, offsets = texts.text, texts.types, offsets_of(raw)
    if kept is not None:
        chosen = pa.array(kept)
        keys, text, types = pc.filter(keys, chosen), pc.filter(text, chosen), types[kept]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owners[kept], minlength=len(raw)))])
    places = pa.array(offsets.astype(np.int32))
    return [
        pa.MapArray.from_arrays(places, keys, text, type=ATTRIBUTES),
        pa.Array.from_buffers(pa.binary(), len(raw), [None, places.buffers()[1], pa.py_buffer(types)]),
    ]


def _exact(raw: pa.ListArray, odd_rows: Mask) -> pa.Array:
    if not odd_rows.any():
        return pa.nulls(len(raw), EXACT)
    rows = pa.array(np.arange(len(raw)), mask=~odd_rows)
    return raw.take(rows).cast(EXACT)


def key_values(shown: Sequence[tuple[str, Any]], types: bytes, exact: Sequence[bytes] | None) -> list[KeyValue]:
    """The attributes of one row again, from its three columns."""
    if exact is not None:
        return [KeyValue.FromString(raw) for raw in exact]
    if len(types) != len(shown):
        raise InvalidMessageError(
            f"a row has {len(shown)} attributes and {len(types)} types of them", operation="encode telemetry"
        )
    made = []
    for (key, text), kind in zip(shown, types, strict=True):
        entry = KeyValue(key=key)
        set_value(entry.value, kind, text)
        made.append(entry)
    return made
