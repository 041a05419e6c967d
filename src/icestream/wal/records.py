"""Small files that are replaced as a whole: one line of JSON, and one line with its checksum.

A record is written to a temporary file, synced, and renamed over the old one. So after any crash the old or the new
record is there. Anything else is damage.

`stream.json` is the log's identity: topic, stream id, epoch, Arrow schemas. It changes only when one of these changes.

`checkpoint.json` says what is known to be durable: the active segment, how far it was synced, and the start offset. It
is written when a segment begins, at intervals, and when the log is closed. Unreadable bytes before the checkpoint are
lost data; unreadable bytes after it may be a torn tail.
"""

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import xxhash

from icestream.model.enums import StorageKind
from icestream.model.errors import DamagedError
from icestream.wal.files import Files, write_file


def write_record(files: Files, path: Path, fields: dict[str, Any]) -> None:
    line = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    data = line + b"xxh3 " + xxhash.xxh3_64_hexdigest(line).encode() + b"\n"
    temporary = path.with_name(path.name + ".tmp")
    write_file(files, temporary, [data])
    files.replace(temporary, path)
    files.sync_directory(path.parent)


def read_record(files: Files, path: Path) -> dict[str, Any]:
    data = files.read_bytes(path)
    line, _, checksum = data.partition(b"\n")
    if checksum != b"xxh3 " + xxhash.xxh3_64_hexdigest(line + b"\n").encode() + b"\n":
        raise DamagedError(
            "the checksum does not match",
            operation="open log",
            place=str(path),
            remedy="run `icestream wal repair` on the directory; it rebuilds the file from the segments",
            details={"file": str(path), "position": 0},
        )
    fields = json.loads(line)
    assert isinstance(fields, dict)
    return fields


STREAM_FILE = "stream.json"
CHECKPOINT_FILE = "checkpoint.json"
_FORMAT = 1


class ClockReset(NamedTuple):
    """From this offset on, publish times are at or after this time, and may be before those of earlier messages."""

    offset: int
    time_us: int


@dataclass(frozen=True)
class StreamInfo:
    topic: str
    stream_id: UUID
    epoch: int = 1
    salt: int = field(default_factory=lambda: secrets.randbits(64), repr=False)
    """Seeds the checksums of frames. It is secret, so that no payload can be made to look like a frame."""
    schemas: dict[int, str] = field(default_factory=dict)
    """The topic's own Arrow schemas by id, each as base64 of its serialized form. The log does not use them."""
    storage: str = StorageKind.TABLE
    """The topic's storage kind. The log does not use it."""
    clock_resets: tuple[ClockReset, ...] = ()
    """Where publish times went back to the clock, oldest first; see `Log.reset_clock`."""

    def reset_before(self, time_us: int) -> int:
        """Return the offset from which on publish times tell where a time is: that of the last reset before it."""
        return max((reset.offset for reset in self.clock_resets if reset.time_us <= time_us), default=0)

    def save(self, files: Files, directory: Path) -> None:
        fields: dict[str, Any] = {
            "format": _FORMAT,
            "topic": self.topic,
            "stream_id": str(self.stream_id),
            "epoch": self.epoch,
            "salt": self.salt,
            "schemas": {str(number): schema for number, schema in self.schemas.items()},
        }
        if self.storage != StorageKind.TABLE:
            fields["storage"] = self.storage
        if self.clock_resets:
            fields["clock_resets"] = [list(reset) for reset in self.clock_resets]
        write_record(files, directory / STREAM_FILE, fields)


@dataclass(frozen=True)
class Checkpoint:
    segment_number: int
    base_offset: int
    position: int
    durable_end: int
    start_offset: int

    def save(self, files: Files, directory: Path) -> None:
        write_record(files, directory / CHECKPOINT_FILE, {"format": _FORMAT, **asdict(self)})


def load_stream(files: Files, directory: Path) -> StreamInfo:
    fields = read_record(files, directory / STREAM_FILE)
    _check_format(fields, directory / STREAM_FILE)
    return StreamInfo(
        topic=fields["topic"],
        stream_id=UUID(fields["stream_id"]),
        epoch=fields["epoch"],
        salt=fields["salt"],
        schemas={int(number): schema for number, schema in fields["schemas"].items()},
        storage=fields.get("storage", StorageKind.TABLE),
        clock_resets=tuple(ClockReset(*reset) for reset in fields.get("clock_resets", ())),
    )


def load_checkpoint(files: Files, directory: Path) -> Checkpoint:
    fields = read_record(files, directory / CHECKPOINT_FILE)
    _check_format(fields, directory / CHECKPOINT_FILE)
    return Checkpoint(**fields)


def _check_format(fields: dict[str, object], path: Path) -> None:
    found = fields.pop("format", None)
    if found != _FORMAT:
        raise DamagedError(
            f"the record has format {found}; this version knows format {_FORMAT}",
            operation="open log",
            place=str(path),
            remedy="open it with the version of icestream that wrote it",
        )
