"""The ledger: which stream a table belongs to, and up to which offset it holds it.

The ledger is in the table's properties. The catalog commit that appends the files sets it. The summary of each snapshot
that icestream writes repeats it. The properties are authoritative; the summaries reveal a table that was set back to an
older snapshot.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import ancestors_of

from icestream.model.errors import DamagedError, IncompatibleTableError
from icestream.model.offsets import OffsetRanges
from icestream.model.quarantine import Quarantined, parse_quarantine, quarantine_text

STREAM_ID = "icestream.stream-id"
EPOCH = "icestream.epoch"
COMMITTED_OFFSET = "icestream.committed-offset"
LOST_RANGES = "icestream.lost-ranges"
"""Offsets below the committed one without a row, because a repair of the log gave up their messages or because they are
in quarantine: JSON pairs of first and end."""
QUARANTINE = "icestream.quarantine"
"""The quarantined ones of these, with reason and file: a JSON list of objects."""

REMOVED_RANGES = "icestream.removed-ranges"
"""Offsets below the committed one without a row, because another engine deleted it and that was accepted: JSON pairs of
first and end."""
REMOVALS = "icestream.removals"
"""Who deleted these: a JSON list of objects, the newest last."""


@dataclass(frozen=True)
class Ledger:
    stream_id: str
    epoch: int
    committed_offset: int
    """All messages below it are in the table, except those that were given up or are in quarantine."""

    def to_properties(self) -> dict[str, str]:
        return {
            STREAM_ID: self.stream_id,
            EPOCH: str(self.epoch),
            COMMITTED_OFFSET: str(self.committed_offset),
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, str | None], *, place: str) -> Self:
        """Read the ledger of a table; raise if there is none: then icestream did not create the table."""
        try:
            return cls(
                str(properties[STREAM_ID]),
                int(str(properties[EPOCH])),
                int(str(properties[COMMITTED_OFFSET])),
            )
        except KeyError as missing:
            raise IncompatibleTableError(
                f"the table has no property {missing}: icestream did not create it",
                operation="open table",
                place=place,
                remedy="rename or drop the table, or give the topic another name",
            ) from None
        except ValueError as error:
            raise IncompatibleTableError(
                f"the table's ledger cannot be parsed: {error}",
                operation="open table",
                place=place,
                remedy=f"restore the properties {EPOCH} and {COMMITTED_OFFSET} from the newest snapshot's summary",
            ) from error


def lost_properties(lost: OffsetRanges) -> dict[str, str]:
    return {LOST_RANGES: lost.to_text()} if lost else {}


def read_ranges(properties: Mapping[str, str], name: str, *, place: str) -> OffsetRanges:
    """Return the offsets of the property `LOST_RANGES` or `REMOVED_RANGES`."""
    try:
        return OffsetRanges.parse(properties.get(name))
    except ValueError as error:
        raise IncompatibleTableError(
            f"the table's property {name} cannot be parsed: {error}",
            operation="open table",
            place=place,
            remedy="restore it from an older metadata file; or remove it, then gaps count as damage",
        ) from error


def read_removals(properties: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the deletions that were accepted, the newest last: a dictionary for each snapshot that deleted rows."""
    try:
        found = json.loads(properties.get(REMOVALS, "[]"))
    except ValueError:
        return []  # it only explains; the offsets are in another property
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def quarantine_properties(entries: Sequence[Quarantined]) -> dict[str, str]:
    return {QUARANTINE: quarantine_text(entries)} if entries else {}


def read_quarantine(properties: Mapping[str, str], *, place: str) -> tuple[Quarantined, ...]:
    """Return the frames in quarantine, by offset."""
    try:
        return parse_quarantine(properties.get(QUARANTINE))
    except ValueError as error:
        raise IncompatibleTableError(
            f"the table's property {QUARANTINE} cannot be parsed: {error}",
            operation="open table",
            place=place,
            remedy="restore it from an older metadata file",
        ) from error


def read_ledger(metadata: TableMetadata, *, place: str) -> Ledger:
    """Read the ledger, and compare it with the newest snapshot that icestream wrote.

    If the two differ, the table was set back to an older snapshot, or its properties were changed. Then nothing may be
    written or deleted by this ledger.
    """
    ledger = Ledger.from_properties(metadata.properties, place=place)
    for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
        summary = snapshot.summary
        said = summary.additional_properties.get(COMMITTED_OFFSET) if summary else None
        if said is None:
            continue
        if said != str(ledger.committed_offset):
            raise DamagedError(
                f"the table's ledger says that it holds the messages below offset {ledger.committed_offset}, "
                f"its newest snapshot says {said}",
                operation="read ledger",
                place=place,
                remedy="make the newest snapshot current again; or, if the log still has the messages, "
                f"set the table's property {COMMITTED_OFFSET} to {said}",
            )
        break
    return ledger
