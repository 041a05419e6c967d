import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.model.errors import DamagedError, InvalidMessageError, InvalidRequestError, TooLargeError
from icestream.model.messages import (
    MESSAGE_SCHEMA,
    STREAM_SCHEMA,
    Encoding,
    Frame,
    check_and_encode,
    check_batch,
    check_message_sizes,
    check_topic_schema,
    message_batch,
    messages_of,
    slice_from,
    stream_batches,
    stream_schema,
)

SCHEMAS = {0: MESSAGE_SCHEMA}


def frame(batch: pa.RecordBatch, offset: int, producer: str = "p", sequence: int = 0, time_us: int = 7) -> Frame:
    encoding, body = check_and_encode(batch, batch.schema)
    return Frame(offset, batch.num_rows, time_us, 1, producer, sequence, encoding, 0, memoryview(body))


@given(st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), min_size=1, max_size=12))
def test_frames_come_out_as_the_messages_that_went_in(batches: list[list[bytes]]) -> None:
    frames, offset = [], 0
    for number, payloads in enumerate(batches):
        frames.append(frame(message_batch(payloads), offset, f"p{number}", sequence=100 + number, time_us=number))
        offset += len(payloads)
    table = pa.Table.from_batches(stream_batches(frames, SCHEMAS))
    assert table.schema == STREAM_SCHEMA
    assert table["offset"].to_pylist() == list(range(offset))
    assert table["payload"].to_pylist() == [payload for payloads in batches for payload in payloads]
    assert table["producer"].to_pylist() == [f"p{n}" for n, payloads in enumerate(batches) for _ in payloads]
    expected = [100 + number + place for number, payloads in enumerate(batches) for place in range(len(payloads))]
    assert table["sequence"].to_pylist() == expected


def test_messages_carry_key_attributes_and_time() -> None:
    batch = message_batch([b"a", b"b"], [b"k", None], [[("x", "1")], None])
    first, second = [m for b in stream_batches([frame(batch, 5, time_us=1_000_000)], SCHEMAS) for m in messages_of(b)]
    assert (first.offset, first.key, first.attributes, first.payload) == (5, b"k", {"x": "1"}, b"a")
    assert (second.offset, second.key, second.attributes) == (6, None, {})
    assert first.publish_time.isoformat() == "1970-01-01T00:00:01+00:00"


def test_large_frames_are_not_joined_and_small_ones_are() -> None:
    large, small = message_batch([b"x" * 300_000]), message_batch([b"y"])
    frames = [frame(large, 0), frame(small, 1), frame(small, 2), frame(large, 3)]
    assert [batch.num_rows for batch in stream_batches(frames, SCHEMAS)] == [1, 2, 1]


def test_messages_given_up_by_a_repair_are_passed_over() -> None:
    lost = Frame(1, 3, 0, 1, "", 0, Encoding.LOST, 0, b"")
    frames = [frame(message_batch([b"a"]), 0), lost, frame(message_batch([b"b"]), 4)]
    table = pa.Table.from_batches(stream_batches(frames, SCHEMAS))
    assert table["offset"].to_pylist() == [0, 4]


def test_a_body_that_is_not_what_the_header_says_is_damage() -> None:
    good = frame(message_batch([b"a", b"b"]), 0)
    for bad in (good._replace(message_count=3), good._replace(encoding=77), good._replace(body=b"nonsense")):
        with pytest.raises(DamagedError):
            list(stream_batches([bad], SCHEMAS))


def test_a_batch_of_another_schema_is_refused_and_both_are_named() -> None:
    with pytest.raises(InvalidMessageError, match="payload: binary not null"):
        check_batch(pa.record_batch({"x": [1]}), MESSAGE_SCHEMA)


def test_offsets_that_point_outside_their_buffer_are_refused() -> None:
    offsets = pa.py_buffer(struct.pack("<3i", 0, 1 << 30, 3))
    payload = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    batch = pa.RecordBatch.from_arrays(
        [pa.nulls(2, MESSAGE_SCHEMA[0].type), pa.nulls(2, MESSAGE_SCHEMA[1].type), payload], schema=MESSAGE_SCHEMA
    )
    with pytest.raises(InvalidMessageError, match="not valid Arrow"):
        check_batch(batch, MESSAGE_SCHEMA)


def test_a_null_payload_is_refused() -> None:
    arrays = [pa.nulls(1, field.type) for field in MESSAGE_SCHEMA]
    with pytest.raises(InvalidMessageError, match="payload"):
        check_batch(pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA), MESSAGE_SCHEMA)


def test_one_message_too_large_is_found_in_a_batch_of_many() -> None:
    check_message_sizes(message_batch([b"x" * 100] * 50), 200)
    with pytest.raises(TooLargeError, match="message 3 "):
        check_message_sizes(message_batch([b"x"] * 3 + [b"x" * 300]), 200)


def test_own_columns_stand_behind_an_envelope_that_cannot_collide() -> None:
    schema = pa.schema([("offset", pa.int32()), ("value", pa.float64())])
    names = ["_offset", "_publish_time", "_producer", "_sequence", "offset", "value"]
    assert stream_schema(check_topic_schema(schema)).names == names


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([("_offset", pa.int64())]),
        pa.schema([("a", pa.int8()), ("a", pa.int8())]),
        pa.schema([("a", pa.dictionary(pa.int8(), pa.string()))]),
        pa.schema([("a", pa.list_(pa.struct([("b", pa.dictionary(pa.int8(), pa.string()))])))]),
    ],
)
def test_schemas_that_cannot_be_a_topics_are_refused(schema: pa.Schema) -> None:
    with pytest.raises(InvalidRequestError):
        check_topic_schema(schema)


def test_a_range_of_offsets_is_cut_out_of_a_batch() -> None:
    (batch,) = stream_batches([frame(message_batch([b"%d" % n for n in range(10)]), 100)], SCHEMAS)
    assert slice_from(batch, 103, 106)["offset"].to_pylist() == [103, 104, 105]
    assert slice_from(batch, 0) is batch
