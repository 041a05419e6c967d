"""OTLP's `AnyValue` as text that can be read and searched, and back; and sets of attributes as three columns.

A value has a text and a type, the number of its field in `AnyValue`:

| type | value | text |
|---|---|---|
| 1 | string | itself |
| 2 | bool | `true`, `false` |
| 3 | int | decimal digits |
| 4 | double | the shortest digits that give the same double again; `nan`, `inf`, `-inf` |
| 5 | array | JSON |
| 6 | map | JSON |
| 7 | bytes | base64 |
| 0, 8 | no value, an index into a profile's table | null |

Text and type together are exact for 1, 2, 3, 4 and 7. The others, and a NaN with other bits than the usual, are
`odd`: callers keep their serialized form as well.
"""

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from icestream.model.errors import InvalidMessageError
from icestream.telemetry.arrays import Ints, Mask, offsets_of, owners_of, valid
from icestream.telemetry.schemas import ATTRIBUTES, EXACT
from icestream.telemetry.wire import decode_key_values

STRING, BOOL, INT, DOUBLE, BYTES = 1, 2, 3, 4, 7
COMMON = 4
"""Values of the types 1 to 4 come decoded; the others are decoded one by one."""

_TYPE_OF = {field.name: field.number for field in AnyValue.DESCRIPTOR.fields}
_EXACT_TYPES = np.isin(np.arange(256), [STRING, BOOL, INT, DOUBLE, BYTES])
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_PLAIN_NAN = np.float64(math.nan).view(np.uint64)


@dataclass(frozen=True)
class Texts:
    """Many values, as columns."""

    text: pa.Array
    types: npt.NDArray[np.uint8]
    odd: Mask


def texts_of(
    common: Sequence[pa.Array], present: Mask, values_of: Callable[[pa.Array], Iterable[AnyValue]], max_depth: int
) -> Texts:
    """Return the texts. `common` has the string, bool, int and double columns; `values_of` decodes other rows."""
    text, types = _common_texts(common)
    rest = (types == 0) & present
    if rest.any():
        seen = [_second_look(value, max_depth) for value in values_of(pa.array(np.flatnonzero(rest)))]
        types[rest] = [kind for kind, _ in seen]
        text = pc.replace_with_mask(text, pa.array(rest), pa.array([shown for _, shown in seen], pa.string()))
    odd = ~_EXACT_TYPES[types]
    _mark_strange_nans(common[DOUBLE - 1], odd)
    return Texts(text, types, odd)


def _common_texts(common: Sequence[pa.Array]) -> tuple[pa.Array, npt.NDArray[np.uint8]]:
    """Return text and type of each value; null and 0 for a value of another type.

    Only what is there is made into text, behind the strings, and one `take` brings everything to its place: most values
    are strings, and a cast of a column that is mostly null costs as much as one of a full column.
    """
    strings = common[STRING - 1]
    types = valid(strings).astype(np.uint8)  # STRING is 1
    parts, places, end = [strings], np.arange(len(strings)), len(strings)
    for number, member in enumerate(common[1:], start=2):
        if member.null_count < len(member):
            rows = np.flatnonzero(valid(member))
            types[rows] = number
            places[rows] = np.arange(end, end + len(rows))
            parts.append(member.drop_null().cast(pa.string()))
            end += len(rows)
    return strings if len(parts) == 1 else pa.concat_arrays(parts).take(pa.array(places)), types


def _mark_strange_nans(doubles: pa.Array, odd: Mask) -> None:
    if doubles.null_count == len(doubles):
        return
    numbers = np.frombuffer(doubles.buffers()[1], np.float64, len(doubles), doubles.offset * 8)
    nans = np.isnan(numbers)  # of what lies in the place of a null too
    if nans.any():
        odd |= nans & (numbers.view(np.uint64) != _PLAIN_NAN) & valid(doubles)


def _second_look(value: AnyValue, max_depth: int) -> tuple[int, str | None]:
    """Return type and text of a value that is not of a common type."""
    member = value.WhichOneof("value")
    if member is None:
        return 0, None
    plain = _plain(value, 0, max_depth)
    if plain is None or isinstance(plain, str):
        return _TYPE_OF[member], plain
    return _TYPE_OF[member], _JSON.encode(plain)


def _plain(value: AnyValue, depth: int, max_depth: int) -> Any:
    """Return a value as JSON. Numbers that JSON lacks become strings."""
    member = value.WhichOneof("value")
    if member == "array_value":
        return _plain_array(value.array_value, depth + 1, max_depth)
    if member == "kvlist_value":
        return _plain_map(value.kvlist_value, depth + 1, max_depth)
    if member == "bytes_value":
        return b64encode(value.bytes_value).decode()
    if member is None or member == "string_value_strindex":
        return None
    found = getattr(value, member)
    if isinstance(found, float) and not math.isfinite(found):
        return "NaN" if math.isnan(found) else "Infinity" if found > 0 else "-Infinity"
    return found


def _plain_array(array: ArrayValue, depth: int, max_depth: int) -> list[Any]:
    if depth > max_depth:
        _too_deep(max_depth)
    return [_plain(value, depth, max_depth) for value in array.values]


def _plain_map(mapping: KeyValueList, depth: int, max_depth: int) -> dict[str, Any]:
    if depth > max_depth:
        _too_deep(max_depth)
    return {entry.key: _plain(entry.value, depth, max_depth) for entry in mapping.values}


def set_value(value: AnyValue, kind: int, text: str) -> None:
    """Set the exact value from its text and type."""
    if kind == STRING:
        value.string_value = text
    elif kind == BOOL:
        value.bool_value = text == "true"
    elif kind == INT:
        value.int_value = int(text)
    elif kind == DOUBLE:
        value.double_value = float(text)
    elif kind == BYTES:
        value.bytes_value = b64decode(text)
    else:
        raise InvalidMessageError(f"a value of type {kind} has no exact form", operation="encode telemetry")


def _too_deep(max_depth: int) -> NoReturn:
    raise InvalidMessageError(
        f"an attribute or a body has arrays or maps nested deeper than {max_depth} levels", operation="decode telemetry"
    )


# A set of attributes is three columns: one to query, two that keep it exact.
#
# - `attributes`, a map from key to the value's text
# - `attributes_types`, one byte for each entry of the map, in its order: the type of the value
# - `attributes_otlp`, null unless the two say less than was sent (a value is nested or empty, or a key is there twice):
#   then all serialized `KeyValue` messages in their order
#
# A map has each key once, because engines refuse others. Of several entries with one key it has the first.

_COUNTED_PER_ENTRY = 32
"""Up to this many pairs of row and key an entry, a table of counts is faster than sorting."""


def attribute_columns(sources: Sequence[pa.ListArray], max_depth: int) -> list[list[pa.Array]]:
    """Return map, types and exact form for each source, which has lists of serialized `KeyValue` messages.

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
    """Return which entries are the first with their key in their list; None if all are."""
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
    """Return the attributes of one row from its three columns."""
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
