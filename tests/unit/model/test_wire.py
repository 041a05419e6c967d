import struct

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from icestream.model.errors import InvalidRequestError
from icestream.model.lone_message import MAX_SINGLE_BYTES, check_single, decode_singles, encode_message
from icestream.model.messages import MESSAGE_SCHEMA
from icestream.protocol.publish import lone_message, split_lone_message

_pairs = st.none() | st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=3)


@given(st.binary(max_size=40), st.none() | st.binary(max_size=8), _pairs, st.binary(max_size=20))
def test_a_lone_message_comes_out_as_it_went_in(
    payload: bytes, key: bytes | None, pairs: list[tuple[str, str]] | None, text: bytes
) -> None:
    request, body = split_lone_message(lone_message(text, encode_message(payload, key, pairs)))
    assert bytes(request) == text
    check_single(bytes(body))
    (row,) = decode_singles([body], MESSAGE_SCHEMA).to_pylist()
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
        check_single(body)
    except (ValueError, struct.error):
        event("refused")
        return
    event("let in")
    assert decode_singles([body], MESSAGE_SCHEMA).num_rows == 1


def test_what_is_too_large_to_go_alone_is_refused_before_it_is_looked_into() -> None:
    many_pairs = struct.pack("<II", 0xFFFFFFFF, MAX_SINGLE_BYTES) + bytes(MAX_SINGLE_BYTES)
    with pytest.raises(ValueError, match="must be a batch"):
        check_single(many_pairs)
