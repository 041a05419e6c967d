"""Opening a metadata store."""

from pathlib import Path

from icestream.metadata.etcd.options import EtcdOptions
from icestream.metadata.memory import MemoryMetadataStore
from icestream.metadata.sqlite import SqliteMetadataStore
from icestream.metadata.store import MetadataStore
from icestream.model.clock import Clock, now_us
from icestream.model.errors import InvalidRequestError


def open_metadata_store(
    *,
    in_memory: bool = False,
    sqlite_path: Path | None = None,
    etcd: EtcdOptions | None = None,
    clock: Clock = now_us,
) -> MetadataStore:
    """Open one of three: a store in memory, the SQLite file at `sqlite_path` (created if missing), or etcd."""
    if [in_memory, sqlite_path is not None, etcd is not None].count(True) != 1:
        raise InvalidRequestError(
            "a metadata store is either in memory, a SQLite file, or an etcd cluster",
            operation="open metadata store",
            remedy="set one of in_memory, sqlite_path and etcd",
        )
    if etcd is not None:
        # Imported here for start-up: a broker without etcd needs no gRPC.
        from icestream.metadata.etcd.store import EtcdMetadataStore  # noqa: PLC0415

        return EtcdMetadataStore(etcd)
    if sqlite_path is not None:
        return SqliteMetadataStore(sqlite_path, clock=clock)
    return MemoryMetadataStore(clock=clock)
