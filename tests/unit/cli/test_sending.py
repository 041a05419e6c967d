from typing import Any, cast

import pyarrow as pa
import pytest

from icestream.cli.produce import ConfirmedMessages, LineSender, encode_lines, json_encoder
from icestream.client import BatchReceipt, Producer
from icestream.model.errors import InvalidMessageError, LogUnavailableError, TooLargeError

MAX_BYTES = 10


class FakeReceipt:
    def __init__(self, base_offset: int, count: int, *, fails: bool) -> None:
        self._range = (base_offset, count)
        self._fails = fails

    def done(self) -> bool:
        return True

    @property
    def ranges(self) -> list[tuple[int, int]]:
        if self._fails:
            raise LogUnavailableError("the disk is full")
        return [self._range]


class FakeProducer:
    """Acknowledges at once; another publisher puts a message between any two batches."""

    def __init__(self, *, fails: bool = False) -> None:
        self.sent: list[bytes] = []
        self._next = 100
        self._fails = fails

    def prepare(self, batch: pa.RecordBatch) -> list[Any]:
        payloads = batch.column("payload").to_pylist()
        if any(len(payload) > MAX_BYTES for payload in payloads):
            raise TooLargeError("too large", operation="publish", remedy="send less")
        return [payloads]

    def offer_batch(self, batches: list[Any], *, blocking: bool) -> BatchReceipt:
        assert blocking
        (payloads,) = batches
        self.sent += payloads
        receipt = FakeReceipt(self._next, len(payloads), fails=self._fails)
        self._next += len(payloads) + 1
        return cast("BatchReceipt", receipt)


def test_what_is_confirmed_is_counted_with_its_first_and_last_offset() -> None:
    sender = LineSender(cast("Producer", FakeProducer()), encode_lines)
    assert sender.confirmed == ConfirmedMessages(0, None, None)
    sender.send([b"a", b"b"])
    sender.send([b"c"])
    sender.finish()
    assert sender.confirmed == ConfirmedMessages(3, 100, 103)


@pytest.mark.parametrize("bad", range(7))
def test_everything_before_a_bad_line_is_sent_and_nothing_after_it(bad: int) -> None:
    producer = FakeProducer()
    sender = LineSender(cast("Producer", producer), json_encoder(None))
    sender.send([b"0"] * 4)
    lines = [b"%d" % number for number in range(7)]
    lines[bad] = b"oops"
    with pytest.raises(InvalidMessageError, match=f"^line {5 + bad}: not JSON"):
        sender.send(lines)
    sender.finish()
    assert producer.sent == [b"0"] * 4 + lines[:bad]
    assert sender.confirmed.count == 4 + bad


def test_a_line_that_the_broker_would_not_take_is_named_too() -> None:
    producer = FakeProducer()
    sender = LineSender(cast("Producer", producer), encode_lines)
    with pytest.raises(InvalidMessageError, match=r"^line 2: too large; send less$"):
        sender.send([b"fits", b"x" * 11, b"fits"])
    assert producer.sent == [b"fits"]


def test_a_failed_acknowledgement_is_raised_and_not_counted() -> None:
    sender = LineSender(cast("Producer", FakeProducer(fails=True)), encode_lines)
    with pytest.raises(LogUnavailableError):
        sender.send([b"a"])
    with pytest.raises(LogUnavailableError):
        sender.finish()
    assert sender.confirmed.count == 0
