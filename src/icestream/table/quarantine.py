"""Keeps quarantined frames in a folder of the table that orphan clean-up leaves alone.

    {table location}/_quarantine/{first}-{last}-{stream id}.frame      the frame: `icestream.model.quarantine`
                                                           .json       the record: what it is, the reason, its columns
                                                           .retried    written when its messages were published again

The steps that quarantine a frame, and what a crash after each leaves behind:

1. Write frame and record, durably. *Files that nothing names; the next attempt writes the same ones.*
2. Read them back and compare.
3. Commit the ledger past the frame, with its entry in the table's properties (`TopicTable.commit`).

Iceberg's clean-up removes every file that no snapshot names, except those with a path element that begins with `_`.
Dropping the table removes these files too.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from icestream.model.clock import now_us
from icestream.model.errors import CatalogUnavailableError, DamagedError, IncompatibleTableError
from icestream.model.messages import Frame
from icestream.model.quarantine import MAX_REASON_LENGTH, Quarantined, frame_file, open_frame_file
from icestream.table.catalogs import short_reason
from icestream.table.ledger import read_quarantine

if TYPE_CHECKING:
    from icestream.table.tables import TopicTable

FOLDER = "_quarantine"
_FRAME, _RECORD, _RETRIED = ".frame", ".json", ".retried"


@dataclass(frozen=True)
class QuarantineRecord:
    """The record of a quarantined frame: the content of its `.json` file."""

    topic: str
    stream_id: str
    first_offset: int
    end_offset: int
    reason: str
    """The whole reason; the table's property has a short one."""
    schema: str | None
    """The schema of its messages, serialized; None if it is the default one, or unknown."""
    quarantined_us: int


def quarantine_frame(
    table: "TopicTable", frame: Frame, *, first_offset: int, reason: str, schema: str | None
) -> Quarantined:
    """Run steps 1 and 2 for the messages of a frame from an offset on; return the entry for the commit of step 3."""
    stream_id = table.ledger.stream_id
    file = f"{_stem(table, first_offset, frame.end_offset)}{_FRAME}"
    record = QuarantineRecord(str(table.name), stream_id, first_offset, frame.end_offset, reason, schema, now_us())
    _write_and_compare(table, file, frame_file(frame, stream_id))
    _write_and_compare(table, _sibling(file, _RECORD), json.dumps(asdict(record)).encode())
    short = reason if len(reason) <= MAX_REASON_LENGTH else reason[: MAX_REASON_LENGTH - 1] + "…"
    return Quarantined(first_offset, frame.end_offset, short, file, record.quarantined_us)


def read_frame(table: "TopicTable", entry: Quarantined) -> Frame:
    """Read a quarantined frame; every byte is checked."""
    frame = open_frame_file(_read(table, entry.file), table.ledger.stream_id, place=entry.file)
    if not frame.base_offset <= entry.first_offset < entry.end_offset == frame.end_offset:
        raise DamagedError(
            f"the file holds offsets {frame.base_offset} to {frame.end_offset - 1}, not those of the quarantine entry",
            operation="read quarantine",
            place=entry.file,
        )
    return frame


def read_record(table: "TopicTable", entry: Quarantined) -> QuarantineRecord:
    file = _sibling(entry.file, _RECORD)
    try:
        return QuarantineRecord(**json.loads(_read(table, file)))
    except (TypeError, ValueError) as error:
        raise DamagedError(f"the file cannot be parsed: {error}", operation="read quarantine", place=file) from error


def read_retried(table: "TopicTable", entry: Quarantined) -> dict[str, Any] | None:
    """Return when the messages were published again, and their new offsets; None if they were not."""
    file = _sibling(entry.file, _RETRIED)
    try:
        if not table.iceberg.io.new_input(file).exists():
            return None
        return dict(json.loads(_read(table, file)))
    except OSError as error:
        raise _unavailable(error, file) from error


def mark_retried(table: "TopicTable", entry: Quarantined, offsets: dict[str, int | None]) -> None:
    _write_and_compare(table, _sibling(entry.file, _RETRIED), json.dumps({"retried_us": now_us(), **offsets}).encode())


def copy_entry(entry: Quarantined, source: "TopicTable", target: "TopicTable") -> Quarantined:
    """Copy a quarantined frame from one table of a topic to the other; return the entry for the other."""
    read_frame(source, entry)
    file = f"{_stem(target, entry.first_offset, entry.end_offset)}{_FRAME}"
    endings = [_FRAME, _RECORD, *([_RETRIED] if read_retried(source, entry) is not None else [])]
    for ending in endings:
        _write_and_compare(target, _sibling(file, ending), _read(source, _sibling(entry.file, ending)))
    return replace(entry, file=file)


def quarantine_files(properties: Mapping[str, str]) -> Iterator[str]:
    """Yield the paths of all files that a table's quarantine may have."""
    try:
        entries = read_quarantine(properties, place="quarantine")
    except IncompatibleTableError:  # the entries are unreadable, and so are the paths
        return
    for entry in entries:
        yield from (_sibling(entry.file, ending) for ending in (_FRAME, _RECORD, _RETRIED))


def _stem(table: "TopicTable", first: int, end: int) -> str:
    return f"{table.location.rstrip('/')}/{FOLDER}/{first}-{end - 1}-{table.ledger.stream_id}"


def _sibling(file: str, ending: str) -> str:
    return file.removesuffix(_FRAME) + ending


def _write_and_compare(table: "TopicTable", file: str, data: bytes) -> None:
    try:
        with table.iceberg.io.new_output(file).create(overwrite=True) as stream:
            stream.write(data)
        found = _read(table, file)
    except OSError as error:
        raise _unavailable(error, file) from error
    if found != data:
        raise CatalogUnavailableError(
            f"the table's store returned {len(found)} bytes, not the {len(data)} bytes that were written",
            operation="quarantine",
            place=file,
        )


def _read(table: "TopicTable", file: str) -> bytes:
    try:
        with table.iceberg.io.new_input(file).open() as stream:
            return bytes(stream.read())
    except FileNotFoundError as error:
        raise DamagedError("the file is missing", operation="read quarantine", place=file) from error
    except OSError as error:
        raise _unavailable(error, file) from error


def _unavailable(error: OSError, file: str) -> CatalogUnavailableError:
    return CatalogUnavailableError(
        f"the table's store failed: {short_reason(error)}", operation="quarantine", place=file
    )
