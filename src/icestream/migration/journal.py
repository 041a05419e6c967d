"""Which rows of which files are in the topic: the topic itself says so.

A file's rows are published by a producer of the file's own name and numbered from 0, so `producer` and `sequence` of
what is there are the journal. It cannot be lost, and it cannot disagree with what was published.

The broker recognises a repeated batch of the producers that it remembers, which are the newest some thousand. So while
a migration goes on, the topic is asked again for what others brought in meanwhile: another migration of the same files
may have finished one so long ago that the broker has forgotten its producer.
"""

from dataclasses import dataclass

from icestream.client import Client
from icestream.migration.parquet_files import PRODUCER_PREFIX
from icestream.migration.patience import patiently
from icestream.model.messages import ENVELOPE
from icestream.model.names import TopicName

_END_OF_PREFIX = PRODUCER_PREFIX[:-1] + chr(ord(PRODUCER_PREFIX[-1]) + 1)
_UNSEEN_ROWS = 1_000
"""So many may come without being looked at: their producers are fewer than a broker remembers."""


@dataclass(frozen=True)
class Present:
    """What the topic has of one file."""

    rows: int = 0
    first_sequence: int = 0
    end_sequence: int = 0
    first_offset: int = 0
    end_offset: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it is the beginning of the file without a hole, each row once as far as numbers tell."""
        return self.rows == self.end_sequence - self.first_sequence and (not self.rows or not self.first_sequence)

    def __add__(self, later: "Present") -> "Present":
        if not self.rows or not later.rows:
            return later if later.rows else self
        return Present(
            self.rows + later.rows,
            min(self.first_sequence, later.first_sequence),
            max(self.end_sequence, later.end_sequence),
            min(self.first_offset, later.first_offset),
            max(self.end_offset, later.end_offset),
        )


NOTHING = Present()


class Journal:
    def __init__(self, client: Client, topic: TopicName, *, is_plain: bool) -> None:
        """`is_plain`: the topic has messages, no columns of its own."""
        self._client = client
        self._topic = topic
        self._names = [part.name if is_plain else f"_{part.name}" for part in ENVELOPE]
        self._present: dict[str, Present] = {}
        self._seen_end = 0
        self._own: dict[str, Present] = {}
        self._own_rows = 0

    def of(self, producer: str) -> Present:
        return self._present.get(producer, NOTHING) + self._own.get(producer, NOTHING)

    def producers(self) -> set[str]:
        return {*self._present, *self._own}

    def read(self) -> None:
        """Take in what the topic has now."""
        end = self._end()
        if end - self._seen_end != self._own_rows:
            for producer, found in patiently(lambda: self._ask(self._seen_end, end)).items():
                self._present[producer] = self._present.get(producer, NOTHING) + found
        else:  # nobody but this migration has published
            for producer, found in self._own.items():
                self._present[producer] = self._present.get(producer, NOTHING) + found
        self._own, self._own_rows, self._seen_end = {}, 0, end

    def refresh(self) -> bool:
        """Take in what came since, if it could be so much that the broker has forgotten who sent it."""
        if is_much := self._end() - self._seen_end >= _UNSEEN_ROWS:
            self.read()
        return is_much

    def note(self, producer: str, sequence: int, offset: int, count: int) -> None:
        """Rows that the broker has confirmed. What was seen before, or another run brought in, is not counted twice."""
        if offset >= self._seen_end and sequence >= self.of(producer).end_sequence:
            found = Present(count, sequence, sequence + count, offset, offset + count)
            self._own[producer] = self._own.get(producer, NOTHING) + found
            self._own_rows += count

    def _end(self) -> int:
        return patiently(lambda: self._client.describe_topic(self._topic)).durable_end

    def _ask(self, start: int, end: int) -> dict[str, Present]:
        if end <= start:
            return {}
        offset, _, producer, sequence = (f'"{name}"' for name in self._names)
        table = f'"{self._topic.namespace}"."{self._topic.name}"'
        found = self._client.sql(
            f"SELECT {producer}, count(*), min({sequence}), max({sequence}) + 1, min({offset}), max({offset}) + 1 "  # noqa: S608 - names were checked
            f"FROM {table} WHERE {producer} >= '{PRODUCER_PREFIX}' AND {producer} < '{_END_OF_PREFIX}' "
            f"AND {offset} >= {start} AND {offset} < {end} GROUP BY 1"
        )
        return {name: Present(*rest) for name, *rest in zip(*(column.to_pylist() for column in found), strict=True)}
