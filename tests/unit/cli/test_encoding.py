import json
from typing import Any

import pyarrow as pa
import pytest

from icestream.cli.produce import encode_lines, json_encoder, key_of, row_encoder
from icestream.model.errors import InvalidMessageError
from icestream.model.messages import MESSAGE_SCHEMA


def test_lines_are_payloads() -> None:
    batch = encode_lines([b"a", b"\xff", b""])
    assert batch.schema.equals(MESSAGE_SCHEMA)
    assert batch.column("payload").to_pylist() == [b"a", b"\xff", b""]
    assert batch.column("key").null_count == 3


@pytest.mark.parametrize("line", [b'{"a": 1}', b"[1, 2]", b'"text"', b"null", b" 1.5 ", '"é"'.encode()])
def test_any_json_value_is_taken_as_it_stands(line: bytes) -> None:
    assert json_encoder(None)([line]).column("payload").to_pylist() == [line]


@pytest.mark.parametrize(
    "line",
    [b"", b"  ", b"{", b"{} {}", b"NaN", b"[Infinity]", b"\xff", b"'x'", b"[" * 100_000],
    ids=lambda line: line[:9],
)
def test_what_is_not_json_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidMessageError, match=r"^not JSON \(.*\): ['\"].{0,60}") as caught:
        json_encoder(None)([line])
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"id": "é"}, "é".encode()),
        ({"id": 7}, b"7"),
        ({"id": 1.5}, b"1.5"),
        ({"id": True}, b"true"),
        ({"id": {"b": [1, "x"]}}, b'{"b":[1,"x"]}'),
        ({"id": None}, None),
    ],
)
def test_keys(value: Any, key: bytes | None) -> None:
    assert key_of(value, "id") == key
    assert json_encoder("id")([json.dumps(value).encode()]).column("key").to_pylist() == [key]


def test_a_key_may_be_deeper_and_a_field_with_a_dot_in_its_name_goes_first() -> None:
    assert key_of({"a": {"b": "deep"}}, "a.b") == b"deep"
    assert key_of({"a": {"b": "deep"}, "a.b": "plain"}, "a.b") == b"plain"
    assert key_of({"a": {"b": None}}, "a.b") is None


@pytest.mark.parametrize("line", [b"{}", b"[1]", b'{"a": "b"}', b'{"a": {}}', b'{"a": {"c": 1}}', b"null"])
def test_a_line_without_the_field_of_its_key_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidMessageError, match=r"^it has no field a\.b"):
        json_encoder("a.b")([line])


def test_a_key_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InvalidMessageError, match="not valid Unicode"):
        json_encoder("id")([b'{"id": "\\ud800"}'])


class TestRows:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])

    def test_objects_become_rows(self) -> None:
        batch = row_encoder(self.schema)([b'{"name": "x", "id": 1}', b'{"at": "2026-01-31T12:00:00Z"}'])
        assert batch.schema.equals(self.schema)
        assert batch.column("id").to_pylist() == [1, None]
        assert batch.column("at").cast(pa.int64()).to_pylist() == [None, 1_769_860_800_000_000]

    @pytest.mark.parametrize(
        "line", [b"", b"{", b"[1]", b'{"id": "x"}', b'{"unknown": 1}', b'{"id": 1}{"id": 2}', b'{"id": 1.5}']
    )
    def test_what_does_not_fit_is_refused(self, line: bytes) -> None:
        with pytest.raises(InvalidMessageError, match=r"^not (a row|one JSON object)"):
            row_encoder(self.schema)([line])
