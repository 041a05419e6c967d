import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.model.errors import InvalidRequestError
from icestream.model.messages import MESSAGE_SCHEMA
from icestream.model.single import check_single, decode_singles, encode_message
from icestream.model.wire import lone_message, split_lone_message

_pairs = st.none() | st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=3)


@given(st.binary(max_size=40), st.none() | st.binary(max_size=8), _pairs, st.binary(max_size=20))
def test_a_lone_message_comes_out_as_it_went_in(
    payload: bytes, key: bytes | None, pairs: list[tuple[str, str]] | None, text: bytes
) -> None:
    request, body = split_lone_message(lone_message(text, encode_message(payload, key, pairs)))
    assert bytes(request) == text
    check_single(body)
    (row,) = decode_singles([body], MESSAGE_SCHEMA).to_pylist()
    assert row == {"key": key, "attributes": pairs, "payload": payload}


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x00\x00\x00", b'{"topic":"a/b"}', b"\x02\x00\x00\x00\x00"])
def test_what_is_no_lone_message_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="neither a batch nor"):
        split_lone_message(data)


def test_so_is_one_whose_request_is_longer_than_all() -> None:
    with pytest.raises(InvalidRequestError, match="ends at byte 105 of 7"):
        split_lone_message(b"\x01\x64\x00\x00\x00{}")


@given(st.binary(max_size=60))
def test_what_is_let_in_can_be_read_again(body: bytes) -> None:
    view = memoryview(body)
    try:
        check_single(view)
    except (ValueError, struct.error):
        return
    assert decode_singles([view], MESSAGE_SCHEMA).num_rows == 1
