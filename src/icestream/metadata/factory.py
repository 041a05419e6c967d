"""Opens the store that the arguments describe."""

from pathlib import Path

from icestream.metadata.memory import MemoryMetadataStore
from icestream.metadata.sqlite import SqliteMetadataStore
from icestream.metadata.store import MetadataStore
from icestream.model.clock import Clock, now_us
from icestream.model.errors import InvalidRequestError


def open_metadata_store(
    *, in_memory: bool = False, sqlite_path: Path | None = None, clock: Clock = now_us
) -> MetadataStore:
    """One of the two: `in_memory`, or the SQLite file at `sqlite_path`, made if there is none."""
    if in_memory and sqlite_path is None:
        return MemoryMetadataStore(clock=clock)
    if sqlite_path is not None and not in_memory:
        return SqliteMetadataStore(sqlite_path, clock=clock)
    raise InvalidRequestError(
        "a metadata store is either in memory or a SQLite file",
        operation="open metadata store",
        remedy="set in_memory or sqlite_path, not both",
    )
