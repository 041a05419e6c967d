"""What was published and acknowledged, kept apart from log and table, and the comparison of a table with it.

Every payload carries a number that no other has, and a checksum over itself; so a row that is lost, doubled, in another
place or changed is told from one that is right, whatever the table says of itself.
"""

import random
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from icestream.model.names import TopicName
from icestream.table import Tables, TopicTable

PATIENCE_SECONDS = 120.0
_NUMBER_BYTES = 8
_CHECKSUM_BYTES = 4


class Oracle:
    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(f"payloads {seed}")
        self._changed = threading.Condition()
        self._number = 0
        self._acknowledged: dict[TopicName, dict[int, bytes]] = defaultdict(dict)
        self._failure: BaseException | None = None
        self.acks = 0

    # What publishers tell

    def payloads(self, count: int, *, filler_bytes: int = 60) -> list[bytes]:
        """The next messages to be published."""
        with self._changed:
            first = self._number
            self._number += count
            fillers = [self._rng.randbytes(self._rng.randint(0, filler_bytes)) for _ in range(count)]
        bodies = (number.to_bytes(_NUMBER_BYTES) + filler for number, filler in enumerate(fillers, first))
        return [zlib.crc32(body).to_bytes(_CHECKSUM_BYTES) + body for body in bodies]

    def acknowledged(self, topic: TopicName, first: int, payloads: Iterable[bytes]) -> None:
        with self._changed:
            known = self._acknowledged[topic]
            for offset, payload in enumerate(payloads, first):
                assert offset not in known, f"offset {offset} of {topic} was given to two messages"
                known[offset] = payload
                self.acks += 1
            self._changed.notify_all()

    def deleted(self, topic: TopicName) -> None:
        """The topic was deleted: nothing of it may be in a table of this name from now on."""
        with self._changed:
            self._acknowledged.pop(topic, None)

    def failed(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    # What a test asks

    def wait_for_acks(self, count: int) -> None:
        """Wait until so many more are there."""
        with self._changed:
            wanted = self.acks + count
            reached = self._changed.wait_for(lambda: self._failure or self.acks >= wanted, PATIENCE_SECONDS)
            if self._failure is not None:
                raise self._failure
            assert reached, f"only {self.acks} acknowledgements, {wanted} were awaited"

    def end(self, topic: TopicName) -> int:
        """Behind the last offset that was acknowledged."""
        with self._changed:
            return max(self._acknowledged[topic], default=-1) + 1

    def check(
        self, tables: Tables, topic: TopicName, stream_id: str | None = None, *, table: TopicName | None = None
    ) -> TopicTable:
        """The table holds what was acknowledged, each message once and where it was, and nothing else."""
        found = tables.find(table or topic)
        assert found is not None, f"{topic} has no table"
        with self._changed:
            acknowledged = dict(self._acknowledged[topic])
        rows = rows_of(found)
        count = len(acknowledged)
        assert sorted(acknowledged) == list(range(count)), f"{topic}: the acknowledged offsets themselves have gaps"
        offsets = rows.column("offset").to_pylist()
        doubled = [offset for offset, after in pairwise(offsets) if offset == after]
        assert not doubled, f"{topic}: doubled rows at the offsets {doubled[:10]}"
        missing = sorted(acknowledged.keys() - set(offsets))
        assert not missing, f"{topic}: {len(missing)} acknowledged messages are missing, at {missing[:10]}"
        assert offsets == list(range(count)), f"{topic}: rows that nobody acknowledged, at {offsets[count:][:10]}"
        for offset, payload in enumerate(rows.column("payload").to_pylist()):
            assert _is_whole(payload), f"{topic}: the bytes at offset {offset} are damaged"
            assert payload == acknowledged[offset], f"{topic}: another message stands at offset {offset}"
        assert found.ledger.committed_offset == count
        assert stream_id in {None, found.ledger.stream_id}
        self._check_snapshot(found, count)
        return found

    def _check_snapshot(self, found: TopicTable, count: int) -> None:
        """What the newest snapshot says of itself is right too."""
        snapshot = found.iceberg.current_snapshot()
        if snapshot is not None and snapshot.summary is not None and "total-records" in snapshot.summary:
            assert snapshot.summary["total-records"] == str(count)


def rows_of(found: TopicTable) -> pa.Table:
    """All rows as the Iceberg library reads them, by offset."""
    rows = found.iceberg.scan().to_arrow()
    return rows.take(pc.sort_indices(rows, [("offset", "ascending")]))


def _is_whole(payload: bytes) -> bool:
    return zlib.crc32(payload[_CHECKSUM_BYTES:]).to_bytes(_CHECKSUM_BYTES) == payload[:_CHECKSUM_BYTES]
