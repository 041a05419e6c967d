import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.model.errors import DamagedError, InvalidMessageError
from icestream.model.frames import Frame
from icestream.model.lone_message import MAX_SINGLE_BYTES
from icestream.model.messages import (
    MESSAGE_SCHEMA,
    Encoding,
    check_and_encode,
    decode_body,
    message_batch,
    stream_batches,
)

_attributes = st.none() | st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=3)
_message = st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=8), _attributes)


def frame_of(batch: pa.RecordBatch, offset: int = 0) -> Frame:
    encoding, body = check_and_encode(batch, MESSAGE_SCHEMA)
    return Frame(offset, 1, 0, 1, "", 0, encoding, 0, memoryview(body))


@given(st.lists(_message, min_size=1, max_size=10))
def test_single_messages_come_out_as_they_went_in(
    messages: list[tuple[bytes, bytes | None, list[tuple[str, str]]]],
) -> None:
    batches = [message_batch([payload], [key], [pairs]) for payload, key, pairs in messages]
    frames = [frame_of(batch, offset) for offset, batch in enumerate(batches)]
    assert {frame.encoding for frame in frames} == {Encoding.SINGLE}
    (joined,) = stream_batches(frames, {0: MESSAGE_SCHEMA})
    assert joined.select(MESSAGE_SCHEMA.names).to_pylist() == [row for batch in batches for row in batch.to_pylist()]


def test_a_large_message_stays_arrow() -> None:
    small, large = message_batch([b"x" * MAX_SINGLE_BYTES]), message_batch([b"x" * (MAX_SINGLE_BYTES + 1)])
    assert frame_of(small).encoding == Encoding.SINGLE
    assert frame_of(large).encoding == Encoding.ARROW_IPC
    assert decode_body(frame_of(large), MESSAGE_SCHEMA).equals(large)


@pytest.mark.parametrize("offsets", [(-1, 3), (3, 1), (0, 1000), (0, 2**31 - 1)])
def test_offsets_that_point_outside_are_refused(offsets: tuple[int, int]) -> None:
    body = message_batch([b"x" * 77]).serialize().to_pybytes()
    sound, broken = (struct.pack("<ii", *pair) for pair in ((0, 77), offsets))
    head, tail = body.rsplit(sound, 1)
    batch = pa.ipc.read_record_batch(pa.py_buffer(head + broken + tail), MESSAGE_SCHEMA)
    with pytest.raises(InvalidMessageError):
        check_and_encode(batch, MESSAGE_SCHEMA)


def test_attributes_without_a_value_stay_arrow() -> None:
    batch = message_batch([b"a"], None, [[("name", None)]])
    assert frame_of(batch).encoding == Encoding.ARROW_IPC
    assert decode_body(frame_of(batch), MESSAGE_SCHEMA).equals(batch)


def test_a_null_payload_is_refused() -> None:
    payload = pa.array([None], pa.binary())
    batch = pa.RecordBatch.from_arrays([*message_batch([b"a"]).columns[:2], payload], schema=MESSAGE_SCHEMA)
    with pytest.raises(InvalidMessageError, match="must not be null"):
        check_and_encode(batch, MESSAGE_SCHEMA)


def test_a_row_out_of_a_larger_batch_is_that_row() -> None:
    batch = message_batch([b"a", b"bb", b"ccc"], [b"k", None, b"l"]).slice(2)
    assert decode_body(frame_of(batch), MESSAGE_SCHEMA).to_pylist() == batch.to_pylist()


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x05\0\0\0\xff\xff\xff\xff", b"\xff\xff\xff\xff\x09\0\0\0abcd"])
def test_a_body_that_is_not_one_is_damage(body: bytes) -> None:
    frame = Frame(7, 1, 0, 1, "", 0, Encoding.SINGLE, 0, memoryview(body))
    with pytest.raises(DamagedError, match="offsets 7"):
        decode_body(frame, MESSAGE_SCHEMA)
