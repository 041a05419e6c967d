"""Which offsets of a stream stand for messages that a repair of its log gave up, or that a pipeline put aside.

Where it matters which of the two, `icestream.model.quarantine` tells what was put aside and where it is.

Ranges of offsets, from the first to before the end, in order and apart from each other. Their number is bounded: beyond
it the two that lie closest are taken for one, which then claims the messages between them as well.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self, TypeAlias

Range: TypeAlias = tuple[int, int]

MAX_RANGES = 1000


@dataclass(frozen=True)
class LostRanges:
    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> Self:
        """The same offsets as few ranges."""
        merged: list[Range] = []
        for first, end in sorted(ranges):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            elif first < end:
                merged.append((first, end))
        return cls(tuple(_bounded(merged)))

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """What `to_text` made, or none of none; raises ValueError for anything else."""
        if text is None:
            return cls()
        try:
            return cls.of((int(first), int(end)) for first, end in json.loads(text))
        except TypeError as error:
            raise ValueError(f"not a list of ranges: {error}") from error

    def to_text(self) -> str:
        return json.dumps(self.ranges, separators=(",", ":"))

    @property
    def messages(self) -> int:
        return sum(end - first for first, end in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: "LostRanges") -> "LostRanges":
        return LostRanges.of((*self.ranges, *other.ranges)) if other else self

    def others(self, first: int, end: int) -> Iterator[Range]:
        """The parts of a range of offsets that are not lost."""
        place = max(0, bisect_right(self.ranges, (first, first)) - 1)
        for lost_first, lost_end in self.ranges[place:]:
            if lost_first >= end:
                break
            if first < lost_first:
                yield first, lost_first
            first = max(first, lost_end)
        if first < end:
            yield first, end


NOTHING_LOST = LostRanges()


def _bounded(ranges: list[Range]) -> list[Range]:
    excess = len(ranges) - MAX_RANGES
    if excess <= 0:
        return ranges
    distances = [(ranges[place][0] - ranges[place - 1][1], place) for place in range(1, len(ranges))]
    joined = {place for _, place in sorted(distances)[:excess]}
    kept: list[Range] = []
    for place, (first, end) in enumerate(ranges):
        if place in joined:
            kept[-1] = (kept[-1][0], end)
        else:
            kept.append((first, end))
    return kept
