"""Chunks of lines on their way to the broker, and what became of them."""

from collections import deque
from dataclasses import dataclass

from icestream.cli.encoding import Encode
from icestream.client import BatchReceipt, Producer
from icestream.model.errors import InvalidMessageError, InvalidRequestError


@dataclass
class Confirmed:
    """What the broker has acknowledged. Others' messages may lie between the first and the last offset."""

    count: int = 0
    first_offset: int | None = None
    last_offset: int | None = None

    def add(self, base_offset: int, count: int) -> None:
        if self.first_offset is None:
            self.first_offset = base_offset
        self.last_offset = base_offset + count - 1
        self.count += count


class Sender:
    def __init__(self, producer: Producer, encode: Encode) -> None:
        self.confirmed = Confirmed()
        self._producer = producer
        self._encode = encode
        self._lines = 0
        self._receipts: deque[BatchReceipt] = deque()

    def send(self, lines: list[bytes]) -> None:
        """Send all lines; or, when one of them is not right, all before it, and raise an error that names it."""
        try:
            batches = self._producer.prepare(self._encode(lines))
        except InvalidRequestError as error:
            if len(lines) == 1:
                raise InvalidMessageError(f"line {self._lines + 1}: {error.message}", remedy=error.remedy) from None
            self.send(lines[: len(lines) // 2])
            self.send(lines[len(lines) // 2 :])
            return
        receipt = self._producer.offer_batch(batches, direct=True, block=True)
        assert receipt is not None
        self._receipts.append(receipt)
        self._lines += len(lines)
        while self._receipts and self._receipts[0].done():
            self._settle()

    def finish(self) -> None:
        """Wait for what is still on its way."""
        while self._receipts:
            self._settle()

    def _settle(self) -> None:
        for base_offset, count in self._receipts[0].ranges:
            self.confirmed.add(base_offset, count)
        self._receipts.popleft()
