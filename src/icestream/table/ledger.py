"""The ledger: which stream a table belongs to, and up to where it holds it.

It stands in the table's properties, set by the same catalog commit that appends the files, and once more in the summary
of each snapshot that icestream writes. The properties are the truth; the summaries tell a table that was set back to an
older snapshot from one that is whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import ancestors_of

from icestream.model.errors import DamagedError, IncompatibleTableError
from icestream.model.offsets import OffsetRanges
from icestream.model.quarantine import Quarantined, parse_quarantine, quarantine_text

STREAM_ID = "icestream.stream-id"
EPOCH = "icestream.epoch"
COMMITTED_OFFSET = "icestream.committed-offset"
LOST_RANGES = "icestream.lost-ranges"
"""Offsets below the committed one that have no row, because a repair of the log gave up their messages or because they
are in quarantine: JSON pairs of first and end."""
QUARANTINE = "icestream.quarantine"
"""Which of these are in quarantine, why, and in which files: a JSON list of objects."""


@dataclass(frozen=True)
class Ledger:
    stream_id: str
    epoch: int
    committed_offset: int
    """All messages below it are in the table, but for those that were given up or are in quarantine."""

    def to_properties(self) -> dict[str, str]:
        return {
            STREAM_ID: self.stream_id,
            EPOCH: str(self.epoch),
            COMMITTED_OFFSET: str(self.committed_offset),
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, str | None], *, place: str) -> Self:
        """The ledger of a table; a table without one is none of icestream's."""
        try:
            return cls(
                str(properties[STREAM_ID]),
                int(str(properties[EPOCH])),
                int(str(properties[COMMITTED_OFFSET])),
            )
        except KeyError as missing:
            raise IncompatibleTableError(
                f"the table has no property {missing}: icestream did not make it",
                operation="open table",
                place=place,
                remedy="rename or drop the table, or give the topic another name",
            ) from None
        except ValueError as error:
            raise IncompatibleTableError(
                f"the table's ledger is not readable: {error}",
                operation="open table",
                place=place,
                remedy=f"restore the properties {EPOCH} and {COMMITTED_OFFSET} from the newest snapshot's summary",
            ) from error


def lost_properties(lost: OffsetRanges) -> dict[str, str]:
    return {LOST_RANGES: lost.to_text()} if lost else {}


def read_lost_ranges(properties: Mapping[str, str], *, place: str) -> OffsetRanges:
    try:
        return OffsetRanges.parse(properties.get(LOST_RANGES))
    except ValueError as error:
        raise IncompatibleTableError(
            f"the table's property {LOST_RANGES} is not readable: {error}",
            operation="open table",
            place=place,
            remedy="restore it from an older metadata file, or remove it: gaps will then be taken for damage",
        ) from error


def quarantine_properties(entries: Sequence[Quarantined]) -> dict[str, str]:
    return {QUARANTINE: quarantine_text(entries)} if entries else {}


def read_quarantine(properties: Mapping[str, str], *, place: str) -> tuple[Quarantined, ...]:
    """The frames in quarantine, by offset."""
    try:
        return parse_quarantine(properties.get(QUARANTINE))
    except ValueError as error:
        raise IncompatibleTableError(
            f"the table's property {QUARANTINE} is not readable: {error}",
            operation="open table",
            place=place,
            remedy="restore it from an older metadata file",
        ) from error


def read_ledger(metadata: TableMetadata, *, place: str) -> Ledger:
    """The ledger of a table whose rows bear it out.

    The newest snapshot that icestream wrote repeats the ledger; if it says something else, somebody has set the table
    back to an older snapshot or has changed the properties, and nothing may be deleted or written on the ledger's word.
    """
    ledger = Ledger.from_properties(metadata.properties, place=place)
    for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
        summary = snapshot.summary
        said = summary.additional_properties.get(COMMITTED_OFFSET) if summary else None
        if said is None:
            continue
        if said != str(ledger.committed_offset):
            raise DamagedError(
                f"the table's ledger says that it holds the messages below {ledger.committed_offset}, "
                f"its newest snapshot says below {said}",
                operation="read ledger",
                place=place,
                remedy="go back to the newest snapshot, or, while the log still has the messages, "
                f"set the table's property {COMMITTED_OFFSET} to {said}",
            )
        break
    return ledger
