"""Errors that nobody expects: the batch is refused, and the stream goes on."""

import json
from typing import Any

import pyarrow as pa
import pytest

from icestream.model.callers import FULL_ACCESS
from icestream.model.messages import message_batch
from icestream.server.publish_stream import PublishStream


class FailingStorage:
    def topic(self, _name: object, *, create: bool) -> None:
        assert create
        raise pa.ArrowMemoryError("no memory")


class Refusals:
    def __init__(self) -> None:
        self.codes: list[str] = []

    def published(self, messages: int, nbytes: int, seconds: float) -> None:
        raise AssertionError((messages, nbytes, seconds))

    def duplicate(self) -> None:
        raise AssertionError

    def refused(self, code: str) -> None:
        self.codes.append(code)


class Written:
    def __init__(self) -> None:
        self.acks: list[dict[str, Any]] = []

    def write(self, ack: bytes) -> None:
        self.acks.append(json.loads(ack))


@pytest.mark.parametrize("parts", [None, [{"count": 1, "id": 8}, {"count": 1, "id": 9}]])
def test_an_error_that_is_not_icestreams_own_refuses_the_batch(parts: list[dict[str, int]] | None) -> None:
    refusals, written = Refusals(), Written()
    stream = PublishStream(FailingStorage(), written.write, refusals, FULL_ACCESS)  # type: ignore[arg-type]
    request = {"topic": "a/b", "id": 7} if parts is None else {"topic": "a/b", "parts": parts}
    stream.receive(message_batch([b"x", b"y"]), json.dumps(request).encode())
    stream.finish(lambda: False)
    (ack,) = written.acks
    outcomes = ack.get("answers", [ack])
    assert [one["id"] for one in outcomes] == ([7] if parts is None else [8, 9])
    assert all("no memory" in one["error"]["message"] for one in outcomes)
    assert refusals.codes == ["error"] * len(outcomes)
