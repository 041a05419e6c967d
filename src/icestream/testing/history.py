"""Checks a topic against the history of what producers sent and which acknowledgements they got.

    history = HistoryChecker()
    payload = history.sending("orders", "sender-1")
    offset = producer.send(payload).result()
    history.acknowledged("orders", offset, payload)
    ...                                     # kill the broker, fill its disk, cut its network
    history.check("orders", rows(client.read("orders")))

The history lives in the test's process, so it survives whatever happens to the broker.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

PATIENCE_SECONDS = 120.0


class StoredMessage(NamedTuple):
    """A message as a reader got it."""

    offset: int
    producer: str
    sequence: int
    payload: bytes


def rows(data: "pa.Table | pa.RecordBatch") -> list[StoredMessage]:
    """Return the messages that `client.read` or a consumer returned."""
    columns = [data.column(name).to_pylist() for name in StoredMessage._fields]
    return [StoredMessage(*values) for values in zip(*columns, strict=True)]


class HistoryChecker:
    """Records sends and acknowledgements. Every payload is unique: it begins with its sender's label and number."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sent: dict[tuple[str, str], list[bytes]] = defaultdict(list)
        self._acknowledged: dict[str, dict[int, bytes]] = defaultdict(dict)
        self._doubly: list[str] = []
        self._failure: BaseException | None = None
        self.acks = 0

    def sending(self, topic: str, sender: str, filler: bytes = b"") -> bytes:
        """Record a sender's next message, and return its payload."""
        with self._changed:
            sent = self._sent[topic, sender]
            payload = f"{sender}:{len(sent)}:".encode() + filler
            sent.append(payload)
            return payload

    def acknowledged(self, topic: str, offset: int, payload: bytes) -> None:
        """Record an acknowledgement."""
        with self._changed:
            if offset in self._acknowledged[topic]:
                self._doubly.append(f"offset {offset} of {topic} was given to two messages")
            self._acknowledged[topic][offset] = payload
            self.acks += 1
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        """Record that a sender has ended with an error: `wait_for_acks` raises it."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def wait_for_acks(self, count: int) -> None:
        """Wait until there are `count` acknowledgements in all."""
        with self._changed:
            reached = self._changed.wait_for(lambda: self._failure or self.acks >= count, PATIENCE_SECONDS)
            if self._failure is not None:
                raise self._failure
            assert reached, f"only {self.acks} acknowledgements, {count} were awaited"

    def highest_offset(self, topic: str) -> int:
        with self._changed:
            return max(self._acknowledged[topic], default=-1)

    def check(self, topic: str, found: Iterable[StoredMessage], *, all_acknowledged: bool = True) -> None:
        """Assert that every acknowledged message is at its offset, once, and that each sender's order is kept.

        With `all_acknowledged` every sent message must be there; without it, the last ones of a sender may be missing.
        """
        found = list(found)
        with self._changed:
            assert not self._doubly, self._doubly
            assert [row.offset for row in found] == list(range(len(found))), "offsets have a gap or a duplicate"
            for offset, payload in self._acknowledged[topic].items():
                assert offset < len(found), f"acknowledged offset {offset} is lost, {len(found)} are there"
                assert found[offset].payload == payload, f"offset {offset} has other bytes than were acknowledged"
            senders = {sender: sent for (owner, sender), sent in self._sent.items() if owner == topic}
        by_sender: dict[str, list[StoredMessage]] = defaultdict(list)
        for row in found:
            by_sender[row.payload.partition(b":")[0].decode()].append(row)
        assert by_sender.keys() <= senders.keys()
        for sender, sent in senders.items():
            stored = by_sender[sender]
            expected = sent if all_acknowledged else sent[: len(stored)]
            assert [row.payload for row in stored] == expected, f"{sender}: lost, doubled or out of order"
            if stored and stored[0].producer == sender:
                assert [row.sequence for row in stored] == list(range(len(stored))), f"{sender}: the numbering jumps"
