"""Times that a table cannot hold are refused; all others pass, and can be stored."""

import pyarrow as pa
import pytest

from icestream.model.errors import InvalidMessageError
from icestream.model.messages import check_batch
from icestream.table.schema import stored_type

SECONDS = 2**63 // 1_000_000
MILLIS = 2**63 // 1_000
DAY_MS = 86_400_000
FAR = {
    "seconds": (pa.timestamp("s"), SECONDS),
    "seconds before": (pa.timestamp("s", tz="UTC"), -SECONDS),
    "milliseconds": (pa.timestamp("ms", tz="Europe/Berlin"), MILLIS),
    "dates": (pa.date64(), (2**31 - 1) * DAY_MS),
}


def check(array: pa.Array) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(array))), array], names=["number", "value"])
    check_batch(batch, batch.schema)


def times(kind: pa.DataType, *values: int | None) -> pa.Array:
    return pa.array(values, pa.int64()).cast(kind)


@pytest.mark.parametrize(("kind", "last"), FAR.values(), ids=FAR)
def test_the_last_time_that_fits_is_taken_and_the_one_behind_it_refused(kind: pa.DataType, last: int) -> None:
    step = (DAY_MS if kind == pa.date64() else 1) * (1 if last > 0 else -1)
    array = times(kind, 0, None, last)
    check(array)
    array.cast(stored_type(kind, "value"))
    with pytest.raises(InvalidMessageError, match=r"column 'value' has a .* a table holds at most"):
        check(times(kind, 0, None, last + step))


@pytest.mark.parametrize("sound", [True, False])
def test_times_inside_others_are_looked_at_too(*, sound: bool) -> None:
    inner = times(pa.timestamp("s"), 1, 1 if sound else SECONDS + 1)
    ones = pa.array([0, 1, 2], pa.int32())
    nested = [
        pa.StructArray.from_arrays([inner, pa.array(["a", "b"])], names=["time", "text"]),
        pa.ListArray.from_arrays(ones, inner),
        pa.FixedSizeListArray.from_arrays(inner, 1),
        pa.MapArray.from_arrays(ones, pa.array(["a", "b"]), inner),
        pa.MapArray.from_arrays(ones, inner, pa.array(["a", "b"])),
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), inner),
        pa.ListArray.from_arrays(ones, pa.StructArray.from_arrays([inner], names=["time"])),
    ]
    for array in nested:
        if not pa.types.is_dictionary(array.type):
            check(array.slice(0, 1))
        if sound:
            check(array)
        else:
            with pytest.raises(InvalidMessageError, match="a table holds at most"):
                check(array)


def test_what_stands_under_a_null_is_nobodys_time() -> None:
    far = times(pa.timestamp("s"), SECONDS + 1)
    hidden = pa.Array.from_buffers(far.type, 1, [pa.py_buffer(b"\0"), far.buffers()[1]])
    check(hidden)
    check(pa.StructArray.from_arrays([far], names=["time"], mask=pa.array([True])))
    check(times(pa.timestamp("ms"), None, None))
    check(times(pa.timestamp("s")))


def test_times_in_finer_units_are_never_too_far() -> None:
    for unit in ("us", "ns"):
        check(times(pa.timestamp(unit), 2**63 - 1, -(2**63)))
