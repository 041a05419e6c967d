"""Options of one log, and the parts that all logs of a process share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from icestream.model.clock import Clock, now_us
from icestream.model.enums import SyncMode
from icestream.wal.cache import FrameCache
from icestream.wal.files import Files
from icestream.wal.group_commit import Pool


@dataclass(frozen=True)
class LogOptions:
    sync_mode: SyncMode = SyncMode.ALWAYS
    max_file_bytes: int = 64 << 20
    max_age_us: int | None = None
    max_group_bytes: int = 2 << 20
    """Most bytes of one group commit, unless a single frame is larger."""
    preallocate_bytes: int = 4 << 20
    """Most bytes that the active segment is grown ahead of the writer; 0 turns that off."""
    small_commit_bytes: int = 16 << 10
    """For group commits up to this size, durable zeros are written ahead; for larger ones, room is reserved."""
    index_interval_bytes: int = 64 << 10
    max_producers: int = 10_000
    reopen_pause_seconds: float = 0.1
    """Least time between two recoveries after failures."""
    lease_timeout_seconds: float = 60.0
    """Longest time that a reader delays retention."""


@dataclass(frozen=True)
class LogContext:
    """The parts that all logs of a process share."""

    files: Files
    cache: FrameCache = field(default_factory=lambda: FrameCache(64 << 20, 1_000_000))
    options: LogOptions = field(default_factory=LogOptions)
    clock: Clock = now_us
    pool: Pool | None = None
    """Commits appends that are not inline. Without a pool, the appending thread commits them."""
    on_commit: Callable[[int, int, float], None] = lambda _frames, _bytes, _sync_seconds: None
    """Called after every group commit with frames, bytes, and seconds for writing and syncing."""
