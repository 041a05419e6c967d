"""Offsets: where a reader starts, and sets of offsets.

A start position is resolved to an offset once, when the reader opens. From then on only the offset counts.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self, TypeAlias

from icestream.model.errors import InvalidRequestError

FORMS = "earliest, latest, an offset, a time such as 2026-01-31T12:00:00Z, snapshot:ID or tag:NAME"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_NAME = re.compile(r"(?!\s)[^\x00-\x1f\x7f]{1,255}(?<!\s)")


class StartPosition(NamedTuple):
    """`earliest`, `latest`, an offset, the first message published at or after a time, or the end of a table snapshot.

    `snapshot` and `tag` mean the first message that the snapshot does not hold: a reader that has processed that state
    of the table continues after it.
    """

    kind: str
    value: Any = 0
    """An offset, microseconds since 1970, a snapshot's id, or a tag's name; 0 for `earliest` and `latest`."""

    @classmethod
    def earliest(cls) -> Self:
        return cls("earliest")

    @classmethod
    def latest(cls) -> Self:
        return cls("latest")

    @classmethod
    def offset(cls, offset: int) -> Self:
        if offset < 0:
            raise InvalidRequestError(f"an offset is 0 or more, not {offset}", operation="start position")
        return cls("offset", offset)

    @classmethod
    def timestamp(cls, time_us: int) -> Self:
        return cls("timestamp", time_us)

    @classmethod
    def snapshot(cls, snapshot_id: int) -> Self:
        return cls("snapshot", snapshot_id)

    @classmethod
    def tag(cls, name: str) -> Self:
        if not _NAME.fullmatch(name):
            raise InvalidRequestError(f"{name!r:.80} is not the name of a tag", operation="start position")
        return cls("tag", name)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a start position: one of `FORMS`. A time without a zone is UTC."""
        if text in {"earliest", "latest"}:
            return cls(text)
        if _OFFSET.fullmatch(text):
            return cls.offset(int(text))
        kind, separator, value = text.partition(":")
        if separator and kind == "tag":
            return cls.tag(value)
        if separator and kind == "snapshot" and _NUMBER.fullmatch(value):
            return cls.snapshot(int(value))
        try:
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return cls.timestamp((moment - _EPOCH) // timedelta(microseconds=1))
        except (ValueError, OverflowError):
            raise InvalidRequestError(
                f"{text!r:.80} is not a start position", operation="start position", remedy=f"use {FORMS}"
            ) from None

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        match self.kind:
            case "offset":
                return str(self.value)
            case "timestamp":
                return (_EPOCH + timedelta(microseconds=self.value)).isoformat().replace("+00:00", "Z")
            case "snapshot" | "tag":
                return f"{self.kind}:{self.value}"
        return self.kind

    @classmethod
    def from_json(cls, value: Any) -> Self:
        match value:
            case None | "earliest":
                return cls.earliest()
            case "latest":
                return cls.latest()
            case bool():
                pass
            case int():
                return cls.offset(value)
            case {"time_us": int(time_us)} if len(value) == 1:
                return cls.timestamp(time_us)
            case {"snapshot_id": int(snapshot_id)} if len(value) == 1:
                return cls.snapshot(snapshot_id)
            case {"tag": str(name)} if len(value) == 1:
                return cls.tag(name)
        raise InvalidRequestError(
            f"{value!r} is not a start position",
            operation="start position",
            remedy='use "earliest", "latest", an offset, {"time_us": …}, {"snapshot_id": …} or {"tag": …}',
        )

    def to_json(self) -> Any:
        match self.kind:
            case "offset":
                return self.value
            case "timestamp":
                return {"time_us": self.value}
            case "snapshot":
                return {"snapshot_id": self.value}
            case "tag":
                return {"tag": self.value}
        return self.kind


# Sets of offsets

Range: TypeAlias = tuple[int, int]
"""The offsets from the first to before the second."""

MAX_RANGES = 1000


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return the same offsets in as few ranges as possible, in order. Empty ranges are left out."""
    merged: list[Range] = []
    for first, end in sorted(ranges):
        if merged and first <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        elif first < end:
            merged.append((first, end))
    return merged


@dataclass(frozen=True)
class OffsetRanges:
    """An immutable set of offsets: the lost ones of a log, or those that a pipeline put into quarantine.

    The ranges are ordered and disjoint. Their number is bounded by `MAX_RANGES`: beyond it the closest ones become one,
    which then includes the offsets between them.
    """

    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> Self:
        return cls(tuple(_bounded(merge_ranges(ranges))))

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Read what `to_text` wrote; None is the empty set. Raises ValueError for anything else."""
        if text is None:
            return cls()
        try:
            return cls.of((int(first), int(end)) for first, end in json.loads(text))
        except TypeError as error:
            raise ValueError(f"not a list of ranges: {error}") from error

    def to_text(self) -> str:
        return json.dumps(self.ranges, separators=(",", ":"))

    @property
    def count(self) -> int:
        """How many offsets there are."""
        return sum(end - first for first, end in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: "OffsetRanges") -> "OffsetRanges":
        return OffsetRanges.of((*self.ranges, *other.ranges)) if other else self

    def gaps(self, first: int, end: int) -> Iterator[Range]:
        """Yield the parts of a range that are not in the set."""
        index = max(0, bisect_right(self.ranges, (first, first)) - 1)
        for held_first, held_end in self.ranges[index:]:
            if held_first >= end:
                break
            if first < held_first:
                yield first, held_first
            first = max(first, held_end)
        if first < end:
            yield first, end

    def count_in(self, first: int, end: int) -> int:
        """Return how many offsets of a range are in the set."""
        return max(0, end - first) - sum(gap_end - gap_first for gap_first, gap_end in self.gaps(first, end))


NO_OFFSETS = OffsetRanges()


def _bounded(ranges: list[Range]) -> list[Range]:
    excess = len(ranges) - MAX_RANGES
    if excess <= 0:
        return ranges
    distances = [(ranges[index][0] - ranges[index - 1][1], index) for index in range(1, len(ranges))]
    joined = {index for _, index in sorted(distances)[:excess]}
    kept: list[Range] = []
    for index, (first, end) in enumerate(ranges):
        if index in joined:
            kept[-1] = (kept[-1][0], end)
        else:
            kept.append((first, end))
    return kept
