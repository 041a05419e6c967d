"""The logs of all topics in one directory: open, find, remove and restore them.

{wal.dir}/{namespace}/{topic}/     a topic's log
{wal.dir}/.deleted/{stream id}/    the log of a deleted topic, until its files are removed
{wal.dir}/.restored/{stream id}/   the new log of a recovered topic, until it is complete
{wal.dir}/.lock                    held by the process that uses the directory
"""

import contextlib
import fcntl
import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import structlog

from icestream.model.errors import DamagedError, DirectoryInUseError, IcestreamError, LogLostError, StaleEpochError
from icestream.model.names import TopicName
from icestream.storage.record import TopicRecord
from icestream.wal import (
    STREAM_FILE,
    Log,
    LogContext,
    LogStart,
    StreamInfo,
    load_stream,
    log_unavailable,
    restore_log,
    segment_offsets,
)


def log_id(stream: StreamInfo) -> str:
    """Return the identity of one log, as against another log of the same stream.

    Two brokers that begin the log of one topic make two logs: same stream, same epoch, another salt. Copies of a
    directory are the same log. The salt itself stays secret.
    """
    return hashlib.blake2b(stream.stream_id.bytes + stream.salt.to_bytes(8, "big"), digest_size=16).hexdigest()


_DELETED = ".deleted"
_RESTORED = ".restored"
_log = structlog.get_logger(__name__)


class Logs:
    def __init__(self, directory: Path, context: LogContext) -> None:
        self._directory = directory
        self.location = f"{socket.gethostname()}:{directory.absolute()}"
        """Host and data directory, as the record of a topic names them."""
        self.context = context

    def path(self, name: TopicName) -> Path:
        return self._directory / name.namespace / name.name

    def is_there(self, name: TopicName) -> bool:
        return self.context.files.exists(self.path(name) / STREAM_FILE)

    def has_segments(self, name: TopicName) -> bool:
        return bool(segment_offsets(self.context.files, self.path(name)))

    def is_lost(self, record: TopicRecord) -> bool:
        """Return whether a topic has a log and this directory does not have it."""
        return record.has_log and not self.is_there(record.name) and not self.has_segments(record.name)

    def check(self, record: TopicRecord) -> None:
        """Raise if a topic's log is lost, or is of an epoch that the topic has left.

        A new log instead of a lost one would give offsets of lost messages to new ones.
        """
        directory = str(self.path(record.name))
        if self.is_there(record.name):
            try:
                epoch = self.stream(record.name).epoch
            except OSError as error:
                raise log_unavailable(
                    "the log cannot be opened", error, operation="open log", place=directory
                ) from error
            if epoch < record.epoch:
                raise StaleEpochError(
                    f"the log here is that of epoch {epoch}, and the topic has gone on elsewhere in epoch "
                    f"{record.epoch}",
                    operation="open log",
                    place=directory,
                    remedy="move the directory away; `icestream topic recover` recovers the topic here",
                )
        elif record.has_log:
            raise self.lost_log_error(record)

    def lost_log_error(self, record: TopicRecord) -> IcestreamError:
        """Return the error for a log that is not in this directory."""
        directory = str(self.path(record.name))
        if self.has_segments(record.name):
            return DamagedError(
                "stream.json is missing, the segments are there",
                operation="open log",
                place=directory,
                remedy="`icestream wal repair` on the directory rebuilds it from the segments",
            )
        return LogLostError(
            f"the topic has a log, and it is not in this data directory{self._last_seen(record)}",
            operation="open log",
            place=directory,
            remedy="if another broker holds the log, publish there; if it is lost, restore the directory from a copy, "
            f"or recover what the cloud and the table have with `icestream topic recover {record.topic}`",
        )

    def held_elsewhere_error(self, record: TopicRecord) -> StaleEpochError:
        """Return the error for a topic whose messages go into the log of another broker."""
        return StaleEpochError(
            f"another broker that uses the same metadata store holds the topic's log{self._last_seen(record)}",
            operation="open log",
            place=str(self.path(record.name)),
            remedy="publish and read there, or give this broker a metadata store of its own; if that broker is gone "
            "for good, move this directory away if it exists and run "
            f"`icestream topic recover {record.topic}`",
        )

    def _last_seen(self, record: TopicRecord) -> str:
        known = record.log_location not in ("", self.location)
        return f" (it was last seen at {record.log_location})" if known else ""

    def check_holder_stopped(self, record: TopicRecord) -> None:
        """Raise where a running broker on this machine holds the topic's log. Another machine cannot be asked."""
        host, _, directory = record.log_location.partition(":")
        if record.log_location == self.location or host != socket.gethostname():
            return
        if directory_in_use(Path(directory)):
            raise DirectoryInUseError(
                "a running broker holds the topic's log",
                operation="recover topic",
                place=directory,
                remedy="stop that broker first, or publish to it",
            )

    def open(self, record: TopicRecord) -> Log:
        """Open a topic's log; create it if it does not exist."""
        directory = self.path(record.name)
        try:
            return Log.create(self.context, directory, record.to_stream())
        except OSError as error:
            raise log_unavailable(
                "the log cannot be opened", error, operation="open log", place=str(directory)
            ) from error

    def restore(self, record: TopicRecord, beginning: LogStart) -> None:
        """Create the log of a recovered topic, which begins at an offset."""
        aside = self._directory / _RESTORED / record.stream_id
        restore_log(self.context.files, self.path(record.name), aside, record.to_stream(), beginning)

    def remove(self, record: TopicRecord) -> None:
        """Move a topic's log aside and remove it. If that fails, the next call continues."""
        files, directory = self.context.files, self.path(record.name)
        deleted = self._directory / _DELETED
        aside = deleted / record.stream_id
        if files.exists(aside):  # an earlier call moved the log there and could not remove all of it
            files.remove_tree(aside)
        if files.exists(directory):
            files.make_directory(deleted)
            files.replace(directory, aside)
            files.sync_directory(directory.parent)
            files.remove_tree(aside)

    def clean(self) -> None:
        """Remove what a killed process has left in `.deleted` and `.restored`; report what cannot be removed."""
        for kind in (_DELETED, _RESTORED):
            for left in self._names(self._directory / kind):
                path = self._directory / kind / left
                try:
                    self.context.files.remove_tree(path)
                except OSError as error:
                    _log.warning("log_remains_not_removed", path=str(path), error=str(error))

    def stream(self, name: TopicName) -> StreamInfo:
        return load_stream(self.context.files, self.path(name))

    def found(self) -> Iterator[TopicName]:
        """Yield the names of all directories for logs."""
        for namespace in self.context.files.names(self._directory):
            if not namespace.startswith("."):
                yield from (TopicName(namespace, topic) for topic in self._names(self._directory / namespace))

    def _names(self, directory: Path) -> list[str]:
        """Return the names in a directory; none, and report it, if it is not a directory or cannot be read.

        The data directory may hold what is not ours: `lost+found` at the root of a file system, or a stray file.
        """
        try:
            return self.context.files.names(directory)
        except OSError as error:
            _log.warning("log_directory_ignored", path=str(directory), error=str(error))
            return []


# One process at a time owns a directory of logs.

LOCK_FILE = ".lock"


def directory_in_use(directory: Path) -> bool:
    """Return whether a broker on this machine holds a directory of logs."""
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def exclusive_directory(directory: Path) -> Iterator[None]:
    """Lock a directory for this process. The operating system unlocks it however the process ends."""
    directory.mkdir(0o700, parents=True, exist_ok=True)
    path = directory / LOCK_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise DirectoryInUseError(
                f"another broker uses this data directory (process {owner})",
                operation="start",
                place=str(directory),
                remedy="stop it, or give this one a directory of its own",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
