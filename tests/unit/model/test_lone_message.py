import struct

import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from icestream.model.errors import DamagedError, InvalidMessageError, InvalidRequestError
from icestream.model.messages import (
    MAX_LONE_BYTES,
    MESSAGE_SCHEMA,
    Encoding,
    Frame,
    check_and_encode,
    check_lone,
    decode_body,
    decode_lone,
    encode_message,
    message_batch,
    stream_batches,
)
from icestream.protocol.publish import lone_message, split_lone_message

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
    assert {frame.encoding for frame in frames} == {Encoding.LONE}
    (joined,) = stream_batches(frames, {0: MESSAGE_SCHEMA})
    assert joined.select(MESSAGE_SCHEMA.names).to_pylist() == [row for batch in batches for row in batch.to_pylist()]


def test_a_large_message_stays_arrow() -> None:
    small, large = message_batch([b"x" * MAX_LONE_BYTES]), message_batch([b"x" * (MAX_LONE_BYTES + 1)])
    assert frame_of(small).encoding == Encoding.LONE
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
    frame = Frame(7, 1, 0, 1, "", 0, Encoding.LONE, 0, memoryview(body))
    with pytest.raises(DamagedError, match="offsets 7"):
        decode_body(frame, MESSAGE_SCHEMA)


# As they travel


@given(st.binary(max_size=40), st.none() | st.binary(max_size=8), _attributes, st.binary(max_size=20))
def test_a_lone_message_comes_out_as_it_went_in(
    payload: bytes, key: bytes | None, pairs: list[tuple[str, str]] | None, text: bytes
) -> None:
    request, body = split_lone_message(lone_message(text, encode_message(payload, key, pairs)))
    assert bytes(request) == text
    check_lone(bytes(body))
    (row,) = decode_lone([body], MESSAGE_SCHEMA).to_pylist()
    assert row == {"key": key, "attributes": pairs, "payload": payload}


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x00\x00\x00", b'{"topic":"a/b"}', b"\x02\x00\x00\x00\x00"])
def test_what_is_no_lone_message_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="neither a batch nor"):
        split_lone_message(data)


def test_so_is_one_whose_request_is_longer_than_all() -> None:
    with pytest.raises(InvalidRequestError, match="ends at byte 105 of 7"):
        split_lone_message(b"\x01\x64\x00\x00\x00{}")


_small_length = st.sampled_from([0xFFFFFFFF, *range(20)]).map(lambda length: struct.pack("<I", length))


@given(st.lists(_small_length | st.binary(max_size=4), max_size=8).map(b"".join))
def test_what_is_let_in_can_be_read_again(body: bytes) -> None:
    try:
        check_lone(body)
    except (ValueError, struct.error):
        event("refused")
        return
    event("let in")
    assert decode_lone([body], MESSAGE_SCHEMA).num_rows == 1


def test_what_is_too_large_to_go_alone_is_refused_before_it_is_looked_into() -> None:
    many_pairs = struct.pack("<II", 0xFFFFFFFF, MAX_LONE_BYTES) + bytes(MAX_LONE_BYTES)
    with pytest.raises(ValueError, match="must be a batch"):
        check_lone(many_pairs)
