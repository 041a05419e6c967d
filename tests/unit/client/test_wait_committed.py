"""Waiting for the table: the broker may hold each call for a while, and may be away for a while."""

from collections.abc import Sequence
from typing import Any

import pytest

from icestream.client import producer
from icestream.client.producer import wait_committed
from icestream.model.errors import UnavailableError

COMMITTED = {"committed": True, "snapshot_id": 7, "committed_offset": 4}


class Connection:
    """Responds from a list, and remembers how long the broker was allowed to hold each call."""

    def __init__(self, *responses: dict[str, Any] | Exception) -> None:
        self._responses: Sequence[dict[str, Any] | Exception] = responses
        self.held: list[tuple[int, float]] = []

    def action(self, _name: str, fields: dict[str, Any], *, hold_s: float = 0.0) -> dict[str, Any]:
        response = self._responses[len(self.held)]
        self.held.append((fields["wait_ms"], hold_s))
        if isinstance(response, Exception):
            raise response
        return response


def test_the_time_that_the_broker_may_hold_a_call_comes_on_top_of_the_timeout() -> None:
    connection = Connection({"committed": False, "committed_offset": 0}, COMMITTED)
    found = wait_committed(connection, "a/b", 3, None)  # type: ignore[arg-type]
    assert found == (7, 4)
    assert connection.held == [(5000, 5.0), (5000, 5.0)]


@pytest.mark.parametrize("timeout", [None, 3_600.0])
def test_a_broker_that_is_away_is_asked_again(timeout: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "_RETRY_SECONDS", 0.0)
    connection = Connection(UnavailableError("away"), UnavailableError("away"), COMMITTED)
    assert wait_committed(connection, "a/b", 3, timeout).snapshot_id == 7  # type: ignore[arg-type]
