"""Values are equal if they are the same value, whatever their type and depth."""

import math
from typing import Any

import pyarrow as pa
import pytest

from icestream.storage.verify.reconcile import MAX_DIFFERENCES, differences

DEEP = pa.struct(
    [("at", pa.timestamp("ns")), ("list", pa.list_(pa.float32())), ("map", pa.map_(pa.string(), pa.float64()))]
)


def batch(kind: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["value"])


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        (pa.binary(), b"a", b"b"),
        (pa.string(), None, ""),
        (pa.float64(), math.nan, 1.0),
        (pa.float64(), 0.0, -0.0),
        (pa.float32(), math.inf, -math.inf),
        (pa.list_(pa.float64()), [math.nan, None], [math.nan, 1.0]),
        (pa.list_(pa.float64()), [], None),
        (pa.map_(pa.string(), pa.int64()), [("a", None)], [("a", 0)]),
        (DEEP, {"at": 1, "list": [math.nan], "map": [("k", math.nan)]}, {"at": 2, "list": [math.nan], "map": []}),
    ],
)
def test_a_value_is_equal_to_itself_and_unlike_another(kind: pa.DataType, value: Any, other: Any) -> None:
    here = [value] * 50
    there = [*here[:33], other, *here[34:]]
    assert list(differences(batch(kind, here), batch(kind, here))) == []
    assert list(differences(batch(kind, here), batch(kind, there))) == [(33, "value")]


def test_only_some_differences_are_told() -> None:
    found = list(differences(batch(pa.int64(), [1] * 100), batch(pa.int64(), [2] * 100)))
    assert len(found) == MAX_DIFFERENCES
