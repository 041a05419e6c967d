import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from icestream.cli.consume import raw_renderer, render_json
from icestream.model.errors import InvalidRequestError
from icestream.model.messages import STREAM_SCHEMA, stream_schema

TIME = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    envelope = {"publish_time": TIME, "producer": "p", "sequence": 0}
    return pa.RecordBatch.from_pylist(
        [{"offset": offset, **envelope, **row} for offset, row in enumerate(rows)], STREAM_SCHEMA
    )


def test_a_message_has_its_fields_in_the_promised_order() -> None:
    line = render_json(batch_of({"payload": b"x", "key": b"k", "attributes": [("a", "1"), ("b", "é")]}))
    assert line.decode() == (
        '{"offset": 0, "publish_time": "2026-01-31T12:00:00.000005Z", "producer": "p", "key": "k", '
        '"attributes": {"a": "1", "b": "é"}, "payload": "x"}\n'
    )


@pytest.mark.parametrize("payload", [b"", b'"quoted"\\', b"a\nb\t\x00\x1b", "日本語 🧊\u2028".encode(), b"{}{0}%s"])
def test_text_is_json_whatever_is_in_it(payload: bytes) -> None:
    lines = render_json(batch_of({"payload": payload, "key": payload})).splitlines()
    assert len(lines) == 1
    message = json.loads(lines[0])
    assert (message["payload"].encode(), message["key"].encode()) == (payload, payload)


def test_a_value_that_is_not_text_is_base64_and_its_neighbours_are_not() -> None:
    rows: list[dict[str, Any]] = [
        {"payload": b"text", "key": b"\xff"},
        {"payload": b"\x80", "key": b"k"},
        {"payload": b"", "key": None},
    ]
    first, second, third = map(json.loads, render_json(batch_of(*rows)).splitlines())
    assert (first["payload"], first["key_base64"], "key" in first) == ("text", "/w==", False)
    assert (second["payload_base64"], second["key"], "payload" in second) == ("gA==", "k", False)
    assert (third["payload"], third["key"], third["attributes"]) == ("", None, {})


def test_raw_is_payloads_and_delimiters() -> None:
    batch = batch_of({"payload": b"\xff"}, {"payload": b""}, {"payload": b"c"})
    assert raw_renderer(b"\n")(batch) == b"\xff\n\nc\n"
    assert raw_renderer(b"")(batch) == b"\xffc"


def test_a_topic_with_columns_gives_its_columns() -> None:
    schema = stream_schema(
        pa.schema(
            [
                ("text", pa.string()),
                ("bytes", pa.binary()),
                ("nanos", pa.timestamp("ns")),
                ("price", pa.decimal128(9, 2)),
                ("float", pa.float64()),
                ("items", pa.list_(pa.struct([("raw", pa.binary()), ("id", pa.binary()), ("day", pa.date32())]))),
            ]
        )
    )
    row = {
        "_offset": 3,
        "_publish_time": TIME,
        "_producer": "p",
        "_sequence": 0,
        "text": "é",
        "bytes": b"\xff",
        "nanos": 1,
        "price": Decimal("1.50"),
        "float": float("nan"),
        "items": [{"raw": b"x", "id": b"\xff", "day": TIME.date()}],
    }
    batch = pa.RecordBatch.from_pylist([row], schema)
    assert json.loads(render_json(batch)) == {
        "_offset": 3,
        "_publish_time": "2026-01-31T12:00:00.000005Z",
        "_producer": "p",
        "_sequence": 0,
        "text": "é",
        "bytes_base64": "/w==",
        "nanos": "1970-01-01T00:00:00.000000001",
        "price": "1.50",
        "float": None,
        "items": [{"raw": "x", "id_base64": "/w==", "day": "2026-01-31"}],
    }
    with pytest.raises(InvalidRequestError, match="use --format json"):
        raw_renderer(b"\n")(batch)
