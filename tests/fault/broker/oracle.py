"""What producers sent and what they were told, kept apart from any broker, and so alive when a broker is not."""

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

PATIENCE_SECONDS = 120.0


class Row(NamedTuple):
    """One message as a reader got it."""

    offset: int
    producer: str
    sequence: int
    payload: bytes


def rows(data: "pa.Table | pa.RecordBatch") -> list[Row]:
    columns = [data.column(name).to_pylist() for name in Row._fields]
    return [Row(*values) for values in zip(*columns, strict=True)]


class Oracle:
    """Every payload is unique, and begins with its sender's label and number."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sent: dict[tuple[str, str], list[bytes]] = defaultdict(list)
        self._acknowledged: dict[str, dict[int, bytes]] = defaultdict(dict)
        self._doubly: list[str] = []
        self._failure: BaseException | None = None
        self.acks = 0

    # What producers tell

    def sending(self, topic: str, sender: str, filler: bytes = b"") -> bytes:
        """The payload of a sender's next message."""
        with self._changed:
            sent = self._sent[topic, sender]
            payload = f"{sender}:{len(sent)}:".encode() + filler
            sent.append(payload)
            return payload

    def acknowledged(self, topic: str, offset: int, payload: bytes) -> None:
        with self._changed:
            if offset in self._acknowledged[topic]:
                self._doubly.append(f"offset {offset} of {topic} was given to two messages")
            self._acknowledged[topic][offset] = payload
            self.acks += 1
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        """A sender has ended; who waits for acknowledgements must not wait for its."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    # What a test asks

    def wait_for_acks(self, count: int) -> None:
        with self._changed:
            reached = self._changed.wait_for(lambda: self._failure or self.acks >= count, PATIENCE_SECONDS)
            if self._failure is not None:
                raise self._failure
            assert reached, f"only {self.acks} acknowledgements, {count} were awaited"

    def highest_offset(self, topic: str) -> int:
        with self._changed:
            return max(self._acknowledged[topic], default=-1)

    def check(self, topic: str, found: Iterable[Row], *, all_answered: bool = True) -> None:
        """The topic's messages are what was acknowledged, where it was, in each sender's order, each once."""
        found = list(found)
        with self._changed:
            assert not self._doubly, self._doubly
            assert [row.offset for row in found] == list(range(len(found))), "offsets have a gap or a duplicate"
            for offset, payload in self._acknowledged[topic].items():
                assert offset < len(found), f"acknowledged offset {offset} is lost, {len(found)} are there"
                assert found[offset].payload == payload, f"offset {offset} has other bytes than were acknowledged"
            senders = {sender: sent for (owner, sender), sent in self._sent.items() if owner == topic}
        by_sender: dict[str, list[Row]] = defaultdict(list)
        for row in found:
            by_sender[row.payload.partition(b":")[0].decode()].append(row)
        assert by_sender.keys() <= senders.keys()
        for sender, sent in senders.items():
            stored = by_sender[sender]
            expected = sent if all_answered else sent[: len(stored)]
            assert [row.payload for row in stored] == expected, f"{sender}: lost, doubled or out of order"
            if stored and stored[0].producer == sender:
                assert [row.sequence for row in stored] == list(range(len(stored))), f"{sender}: the numbering jumps"
