"""Calls about topics in the cloud: asked in steps, paged, and given up in time."""

from typing import Any

import pytest

from icestream.client.admin import CloudCalls
from icestream.model.errors import DeadlineError


class Connection:
    """Answers from a list, and remembers what was asked."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any], float | None]] = []
        self.held_s: list[float] = []

    def action(
        self, name: str, fields: dict[str, Any], *, timeout_s: float | None = None, hold_s: float = 0.0
    ) -> dict[str, Any]:
        self.asked.append((name, fields, timeout_s))
        self.held_s.append(hold_s)
        return self.answers.pop(0)


def calls(*answers: dict[str, Any]) -> tuple[CloudCalls, Connection]:
    connection, made = Connection(*answers), CloudCalls()
    made._connection = connection  # type: ignore[assignment]
    return made, connection


def flushed(uploaded: int, target: int) -> dict[str, Any]:
    return {"topic": "a/b", "target": target, "uploaded_offset": uploaded, "done": uploaded >= target}


def test_a_flush_waits_for_what_was_durable_at_its_beginning() -> None:
    client, connection = calls(flushed(0, 50), flushed(30, 50), flushed(70, 50))
    assert client.flush_topic("a/b", timeout=None) == 70
    assert [fields["target"] for _, fields, _ in connection.asked] == [None, 50, 50]
    assert all(fields["wait_ms"] == 5_000 for _, fields, _ in connection.asked)
    assert connection.held_s == [5.0] * 3


def test_a_flush_that_takes_too_long_says_how_far_it_came() -> None:
    client, connection = calls(flushed(30, 50))
    with pytest.raises(DeadlineError, match=r"the messages below 30, not yet those below 50"):
        client.flush_topic("a/b", timeout=0.001)
    assert len(connection.asked) == 1


def test_objects_are_asked_for_page_by_page() -> None:
    client, connection = calls(
        {"objects": [{"first_offset": 0}, {"first_offset": 5}], "next_after": 5},
        {"objects": [{"first_offset": 9}], "next_after": None},
    )
    assert [one["first_offset"] for one in client.cloud_objects("b")] == [0, 5, 9]
    assert [fields["after"] for _, fields, _ in connection.asked] == [None, 5]
    assert {fields["topic"] for _, fields, _ in connection.asked} == {"default/b"}


def test_a_recovery_may_take_longer_than_other_calls() -> None:
    client, connection = calls({"topic": "a/b"})
    client.recover_topic("a/b", timeout=1_000.0)
    assert connection.asked == [("recover_topic", {"topic": "a/b"}, 1_000.0)]
