"""Small files that are replaced whole: one line of JSON and one line with its checksum.

A record is written beside its place, made durable, and renamed over the old one, so that after any crash there is the
old or the new one. Anything else is damage.
"""

import json
from pathlib import Path
from typing import Any

import xxhash

from icestream.model.errors import DamagedError
from icestream.wal.files import Files


def write_record(files: Files, path: Path, fields: dict[str, Any]) -> None:
    line = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    data = line + b"xxh3 " + xxhash.xxh3_64_hexdigest(line).encode() + b"\n"
    temporary = path.with_name(path.name + ".tmp")
    if files.exists(temporary):
        files.remove(temporary)
    file = files.open(temporary, create=True)
    try:
        written = file.write([data], 0)
        if written != len(data):
            raise OSError(f"only {written} of {len(data)} bytes were written to {temporary}")
        file.datasync()
    finally:
        file.close()
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
            remedy="`icestream wal repair` on its directory rebuilds it from the segments",
            details={"file": str(path), "position": 0},
        )
    fields = json.loads(line)
    assert isinstance(fields, dict)
    return fields
