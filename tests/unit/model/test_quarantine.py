"""The list of what is in quarantine, and the files that keep it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.model.errors import DamagedError
from icestream.model.messages import Frame
from icestream.model.quarantine import (
    Quarantined,
    frame_file,
    open_frame_file,
    parse_quarantine,
    quarantine_text,
    quarantined_ranges,
)
from icestream.protocol.read import frame_batch, frame_schema, frames_in, schemas_of

FRAME = Frame(7, 3, 1_000, 2, "who", 40, 1, 5, b"what nobody can open")


def test_a_list_comes_back_in_the_order_of_offsets() -> None:
    entries = [Quarantined(first, first + 2, 'why "so"', f"file:///{first}", 99) for first in (9, 1, 5)]
    assert [entry.first_offset for entry in parse_quarantine(quarantine_text(entries))] == [1, 5, 9]
    assert set(parse_quarantine(quarantine_text(entries))) == set(entries)
    assert parse_quarantine(None) == ()
    assert quarantined_ranges(entries).ranges == ((1, 3), (5, 7), (9, 11))
    assert sum(entry.end_offset - entry.first_offset for entry in entries) == 6


@pytest.mark.parametrize("text", ["no JSON", "{}", "7", "[7]", "[{}]", '[{"first_offset": "x"}]'])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_quarantine(text)


@given(st.binary(max_size=300), st.text(max_size=20))
def test_a_file_gives_back_the_frame(body: bytes, producer: str) -> None:
    frame = FRAME._replace(body=body, producer=producer)
    found = open_frame_file(frame_file(frame, "a stream"), "a stream", place="")
    assert found._replace(body=bytes(found.body)) == frame


@pytest.mark.parametrize("place", range(0, len(frame_file(FRAME, "s")), 7))
def test_a_bit_that_changed_is_noticed_wherever_it_is(place: int) -> None:
    data = bytearray(frame_file(FRAME, "s"))
    data[place] ^= 4
    with pytest.raises(DamagedError, match="the-file"):
        open_frame_file(bytes(data), "s", place="the-file")


@pytest.mark.parametrize(
    ("change", "stream_id", "reason"),
    [
        (lambda data: data[:-8], "s", "cut off"),
        (lambda data: data[:0], "s", "cut off"),
        (lambda data: data + b"12345678", "s", "8 bytes follow"),
        (lambda data: data, "another stream", "checksum"),
    ],
)
def test_a_file_that_is_none_says_why(change: object, stream_id: str, reason: str) -> None:
    assert callable(change)
    with pytest.raises(DamagedError, match=reason):
        open_frame_file(change(frame_file(FRAME, "s")), stream_id, place="")


def test_frames_travel_as_rows_with_the_schemas_of_their_bodies() -> None:
    schema = frame_schema({1: "first", 2: "second"})
    others = [FRAME, FRAME._replace(base_offset=10, body=b"", producer="")]
    batch = frame_batch(others, schema, bodies=True)
    assert schemas_of(batch.schema) == {1: "first", 2: "second"}
    assert [frame._replace(body=bytes(frame.body)) for frame in frames_in(batch)] == others
    bare = list(frames_in(frame_batch(others, schema, bodies=False)))
    assert [(frame.base_offset, frame.end_offset, frame.nbytes) for frame in bare] == [(7, 10, 0), (10, 13, 0)]
