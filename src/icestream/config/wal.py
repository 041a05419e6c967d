"""The write-ahead log: directory, sync mode, rotation, retention, memory."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from icestream.config.fields import DefaultText, LocalPath, OtherName, Section, Unit
from icestream.model.enums import SyncMode
from icestream.model.units import GIB, KIB, MIB, TIB

_HOURS_MAX = 24 * 3660
_MINUTES_MAX = 60 * _HOURS_MAX


def _sync_mode(value: object) -> object:
    return SyncMode.INTERVAL if value == "periodic" else value


class FileSyncSettings(Section):
    """How writes are grouped and synced. Used by the log."""

    interval_ms: int = Field(
        default=1_000,
        ge=1,
        le=3_600_000,
        description="How often sync mode `interval` syncs, and how often the durable end is checkpointed.",
    )
    max_batch_bytes: int = Field(
        default=2 * MIB,
        ge=4 * KIB,
        le=GIB,
        description="Most bytes of one group commit; a single larger batch is written alone. More is not better: bytes "
        "that are still in the processor's cache are written twice as fast.",
    )


class RotationSettings(Section):
    """When a segment is sealed and a new one begins, besides `wal.max_file_size`. Used by the log."""

    max_hours: float | None = Field(
        default=None, gt=0, le=_HOURS_MAX, description="Age at which a segment is sealed; unset, only its size counts."
    )


class RetentionSettings(Section):
    """When local segments are deleted, once the table or the cloud has them. Used by the log."""

    time_minutes: int | None = Field(
        default=None, ge=1, le=_MINUTES_MAX, description="Delete segments older than this; unset, no limit."
    )
    size_mb: int | None = Field(
        default=None, ge=1, le=1024 * 1024 * 1024, description="Delete the oldest segments of a topic beyond this size."
    )
    check_interval_minutes: int = Field(default=5, ge=1, le=_MINUTES_MAX, description="How often retention runs.")


class WalSettings(Section):
    """The write-ahead log of each topic. Used by the log."""

    dir: Annotated[LocalPath, OtherName("wal.base_path"), DefaultText("{data_dir}/wal")] = Field(
        default=Path("icestream-data/wal"), description="Directory of the logs; each topic has a directory in it."
    )
    file_name: str = Field(
        default="wal.log",
        min_length=1,
        description="Has no effect: a segment's file name is its first offset. Kept so that documented files load.",
    )
    max_file_size: Annotated[int, Unit("bytes"), OtherName("wal.rotation.max_bytes")] = Field(
        default=64 * MIB, ge=4 * KIB, le=8 * GIB, description="Size at which a segment is sealed and a new one begins."
    )
    sync_mode: Annotated[SyncMode, BeforeValidator(_sync_mode)] = Field(
        default=SyncMode.ALWAYS,
        description="`always` syncs before each acknowledgement. `interval` acknowledges first and syncs every "
        "`wal.file_sync.interval_ms`, so a power cut can lose that much. `os` leaves it to the operating system. "
        "`periodic` is another name of `interval`.",
    )
    cache_capacity: Annotated[int, Unit("messages a topic")] = Field(
        default=1_000_000, ge=1, le=1_000_000_000, description="Most messages of one topic in the ordered cache."
    )
    cache_max_bytes: int = Field(
        default=64 * MIB, ge=1, le=TIB, description="Most bytes in the ordered cache, all topics together."
    )
    file_sync: FileSyncSettings = Field(default=FileSyncSettings(), description="How writes are grouped and synced.")
    rotation: RotationSettings = Field(default=RotationSettings(), description="When a segment is sealed.")
    retention: RetentionSettings = Field(default=RetentionSettings(), description="When local segments are deleted.")
    min_free_mb: int = Field(
        default=256,
        ge=0,
        le=1024 * 1024 * 1024,
        description="While the disk of `wal.dir` has less free space than this, publishing is refused with a retryable "
        "error, and retention deletes every segment that the table or the cloud has; 0 turns this off.",
    )
    index_interval_bytes: int = Field(
        default=64 * KIB, ge=256, le=GIB, description="Bytes of a segment for each entry of its sparse index."
    )
    preallocate_bytes: int = Field(
        default=4 * MIB,
        ge=0,
        le=GIB,
        description="The active segment grows ahead of the writer in steps of at most this size; 0 turns this off.",
    )
    max_open_files: Annotated[int, Unit("files")] = Field(
        default=1_024, ge=16, le=1_000_000, description="Most segments held open, all topics together."
    )
    max_producers: Annotated[int, Unit("producers a topic")] = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description="Most producers remembered for de-duplication; the one silent for longest is forgotten first.",
    )
    commit_threads: Annotated[int, Unit("threads")] = Field(
        default=8, ge=1, le=256, description="Threads that commit pipelined publishes."
    )
