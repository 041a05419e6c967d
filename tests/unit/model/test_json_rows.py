from typing import Any

import pyarrow as pa
import pytest

from icestream.model.json_rows import json_rows

BYTES = pa.binary()


@pytest.mark.parametrize(
    ("kind", "value", "row"),
    [
        (BYTES, b"x", {"a": "x"}),
        (BYTES, b"\xff", {"a_base64": "/w=="}),
        (BYTES, None, {"a": None}),
        (pa.struct([("id", BYTES)]), {"id": b"x"}, {"a": {"id": "x"}}),
        (pa.struct([("id", BYTES)]), {"id": b"\xff"}, {"a": {"id_base64": "/w=="}}),
        (pa.struct([("id", BYTES)]), {"id": None}, {"a": {"id": None}}),
        (pa.list_(BYTES), [b"x", None, b""], {"a": ["x", None, ""]}),
        (pa.list_(BYTES), [b"x", None, b"\xff"], {"a_base64": ["eA==", None, "/w=="]}),
        (pa.list_(pa.list_(BYTES)), [[b"x"], [b"\xff"]], {"a_base64": [["eA=="], ["/w=="]]}),
        (pa.map_(pa.string(), BYTES), [("k", b"x")], {"a": [["k", "x"]]}),
        (pa.map_(pa.string(), BYTES), [("k", b"\xff")], {"a_base64": [["k", "/w=="]]}),
        (
            pa.list_(pa.struct([("ids", pa.list_(BYTES)), ("n", pa.int64())])),
            [{"ids": [b"\xff"], "n": 1}, {"ids": [b"x"], "n": 2}],
            {"a": [{"ids_base64": ["/w=="], "n": 1}, {"ids": ["x"], "n": 2}]},
        ),
    ],
)
def test_a_name_says_whether_its_bytes_are_base64_however_deep_it_stands(
    kind: pa.DataType, value: Any, row: dict[str, Any]
) -> None:
    assert json_rows(pa.record_batch([pa.array([value], kind)], ["a"])) == [row]
