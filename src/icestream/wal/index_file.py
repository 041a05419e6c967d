"""The file of a segment's sparse index."""

from pathlib import Path

from icestream.model.sparse_index import SparseIndex
from icestream.wal.files import Files


def save_index(index: SparseIndex, files: Files, path: Path) -> None:
    if files.exists(path):
        files.remove(path)
    file = files.open(path, create=True)
    try:
        file.write([index.to_bytes()], 0)
    finally:
        file.close()


def load_index(files: Files, path: Path) -> SparseIndex | None:
    """The saved index, or None where it is missing or its bytes are not what was written."""
    try:
        return SparseIndex.from_bytes(files.read_bytes(path))
    except FileNotFoundError:
        return None
