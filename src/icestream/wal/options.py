"""What a log is told when it is opened."""

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
    """One group commit writes at most this much, unless a single frame is larger."""
    preallocate_bytes: int = 4 << 20
    """The active segment is grown ahead of the writer by at most this much; 0 leaves it to the writes."""
    small_commit_bytes: int = 16 << 10
    """A group commit of at most this much finds zeros that are durable already; for a larger one room is reserved."""
    index_interval_bytes: int = 64 << 10
    max_producers: int = 10_000
    reopen_pause_seconds: float = 0.1
    """After a failure the log is recovered at most this often."""
    lease_timeout_seconds: float = 60.0
    """A reader holds retention up for at most this long."""


@dataclass(frozen=True)
class LogContext:
    """What all logs of a process share."""

    files: Files
    cache: FrameCache = field(default_factory=lambda: FrameCache(64 << 20, 1_000_000))
    options: LogOptions = field(default_factory=LogOptions)
    clock: Clock = now_us
    pool: Pool | None = None
    """Commits appends that nobody waits for; without one, the appending thread does it."""
    on_commit: Callable[[int, int, float], None] = lambda _frames, _bytes, _sync_seconds: None
    """Told of every group commit: frames, bytes, seconds until they were written and synced."""
