"""Start positions as text and as JSON."""

from typing import Any

import pytest

from icestream.model.errors import InvalidRequestError
from icestream.model.offsets import StartPosition

NOON_US = 1_769_860_800_000_000


@pytest.mark.parametrize(
    ("text", "position", "as_json"),
    [
        ("earliest", StartPosition.earliest(), "earliest"),
        ("latest", StartPosition.latest(), "latest"),
        ("17", StartPosition.offset(17), 17),
        ("2026-01-31T12:00:00Z", StartPosition.timestamp(NOON_US), {"time_us": NOON_US}),
        ("snapshot:17", StartPosition.snapshot(17), {"snapshot_id": 17}),
        ("tag:end-of-month", StartPosition.tag("end-of-month"), {"tag": "end-of-month"}),
        ("tag:release 1/\u00fc", StartPosition.tag("release 1/\u00fc"), {"tag": "release 1/\u00fc"}),
    ],
)
def test_a_position_survives_text_and_json(text: str, position: StartPosition, as_json: Any) -> None:
    assert StartPosition.parse(text) == position
    assert str(position) == text
    assert position.to_json() == as_json
    assert StartPosition.from_json(as_json) == position


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "soon", "snapshot:", "snapshot:-1", "tag:", "tag: a", "tag:a\n", "9" * 30]
)
def test_other_text_is_no_position(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        StartPosition.parse(text)


@pytest.mark.parametrize(
    "value", [True, -1, "soon", {"tag": ""}, {"tag": 1}, {"snapshot_id": "1"}, {"tag": "a", "time_us": 1}, [1], {}]
)
def test_other_json_is_no_position(value: Any) -> None:
    with pytest.raises(InvalidRequestError):
        StartPosition.from_json(value)
