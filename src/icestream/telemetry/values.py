"""OTLP's `AnyValue` as text that can be read and searched, and back.

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

Text and type together are exact for 1, 2, 3, 4 and 7. The others, and a NaN with bits of its own, are `odd`: whoever
uses this module keeps their serialized form as well.
"""

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

from icestream.model.errors import InvalidMessageError
from icestream.telemetry.arrays import Mask, valid

STRING, BOOL, INT, DOUBLE, BYTES = 1, 2, 3, 4, 7
COMMON = 4
"""Values of the types 1 to 4 come decoded; the others need a second look."""

_TYPE_OF = {field.name: field.number for field in AnyValue.DESCRIPTOR.fields}
_EXACT_TYPES = np.isin(np.arange(256), [STRING, BOOL, INT, DOUBLE, BYTES])
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_PLAIN_NAN = np.float64(math.nan).view(np.uint64)


@dataclass(frozen=True)
class Texts:
    """Many values, by column."""

    text: pa.Array
    types: npt.NDArray[np.uint8]
    odd: Mask


def texts_of(
    common: Sequence[pa.Array], present: Mask, values_of: Callable[[pa.Array], Iterable[AnyValue]], max_depth: int
) -> Texts:
    """`common` are the columns of string, bool, int and double; `values_of` gives rows' values for a second look."""
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
    """Text and type of each value, null and 0 where it is none of the common ones.

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
    """Type and text of a value that is none of the common ones."""
    member = value.WhichOneof("value")
    if member is None:
        return 0, None
    plain = _plain(value, 0, max_depth)
    if plain is None or isinstance(plain, str):
        return _TYPE_OF[member], plain
    return _TYPE_OF[member], _JSON.encode(plain)


def _plain(value: AnyValue, depth: int, max_depth: int) -> Any:
    """A value as JSON has it; numbers that JSON lacks are named."""
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
    """The exact value again, from its text and type."""
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
        raise InvalidMessageError(f"a value of type {kind} has no exact form beside it", operation="encode telemetry")


def _too_deep(max_depth: int) -> NoReturn:
    raise InvalidMessageError(
        f"an attribute or a body has arrays or maps nested deeper than {max_depth} levels", operation="decode telemetry"
    )
