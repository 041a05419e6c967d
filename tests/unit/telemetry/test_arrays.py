"""Bits read from Arrow's buffers are those that Arrow itself tells, wherever a slice begins."""

import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from icestream.telemetry.arrays import valid
from icestream.telemetry.attributes import texts_of

ODD_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]


@pytest.mark.parametrize("start", [0, 1, 7, 8, 9, 19, 20])
def test_validity_is_right_in_slices(start: int) -> None:
    array = pa.array([None if number % 3 == 0 else number for number in range(20)], pa.int64()).slice(start)
    assert valid(array).tolist() == array.is_valid().to_pylist()


def test_validity_of_arrays_without_bits() -> None:
    assert valid(pa.array([1, 2, 3])).tolist() == [True] * 3
    assert valid(pa.nulls(3)).tolist() == [False] * 3
    assert valid(pa.array([], pa.string())).tolist() == []


def columns(*values: str | bool | float | None) -> list[pa.Array]:
    """The four common columns, as a decoder gives them: each value in one of them."""
    kinds = ((str, pa.string()), (bool, pa.bool_()), (int, pa.int64()), (float, pa.float64()))
    return [pa.array([value if type(value) is kind else None for value in values], made) for kind, made in kinds]


def never(_rows: pa.Array) -> list[AnyValue]:
    raise AssertionError("nothing needs a second look")


@pytest.mark.parametrize("start", [0, 1, 5])
def test_values_of_all_common_types_come_to_their_places(start: int) -> None:
    common = columns("a", 7, True, 0.5, None, "b", False, -7, math.inf, "c", 1.25, 2**62)
    present = np.array([True] * 4 + [False] + [True] * 7)[start:]
    found = texts_of([column.slice(start) for column in common], present, never, 24)
    text = ["a", "7", "true", "0.5", None, "b", "false", "-7", "inf", "c", "1.25", str(2**62)]
    assert found.text.to_pylist() == text[start:]
    assert found.types.tolist() == [1, 3, 2, 4, 0, 1, 2, 3, 4, 1, 4, 3][start:]


@pytest.mark.parametrize("start", [0, 1, 2])
def test_a_nan_with_bits_of_its_own_is_odd_and_a_plain_one_is_not(start: int) -> None:
    common = [column.slice(start) for column in columns(1.0, "a", math.nan, ODD_NAN, None, 2.0)]
    found = texts_of(common, valid(common[3]) | valid(common[0]), never, 24)
    assert found.odd.tolist()[:-2] == [False, False, False, True][start:]
