"""The write-ahead log: makes an acknowledgement durable.

Guarantees
----------
* A batch is on the disk when `Log.append` returns for it, or when its callback is called without an error. It survives
  any crash and power loss (sync mode `always`).
* Offsets count from 0 without a gap. Readers see durable frames only, so an offset that was read keeps its bytes.
* Damage raises `DamagedError` with file, position and offsets. The log never gets shorter because of it. Recovery cuts
  off only a torn tail: bytes after the last durable one. It keeps a copy of them.
* After a failed write or sync the log acknowledges nothing until it was recovered and verified.
* A batch that a named producer sends twice is stored once, also when a restart lies between.
* Every batch gets its outcome. A callback that raises delays no other batch.

On disk
-------
One directory per topic::

    stream.json                     topic, stream id, epoch, schemas
    checkpoint.json                 the position up to which the log is known to be durable
    00000000000000000000.log        a segment: frames; its name is its first offset
    00000000000000000000.index      sparse index of a sealed segment       (derived)
    00000000000000000000.producers  the producers' state before a segment  (derived)
    upload.json                     how far the log is uploaded; the uploader writes it
    torn/                           copies of what recovery and repair cut off

Recovery rebuilds what is derived; the producers' state only as long as the segments before it exist.
`docs/formats/wal.md` shows the bytes.

Rules
-----
* Write through `Log` only, from one process. A sync of the directory follows every created, renamed or removed name.
* Read with `LogReader`, up to the durable end. Every frame is checked.
* Delete with `Log.prune`. It removes whole sealed segments from the front, and first saves the new start offset. A
  reader holds a lease on what it reads; the lease delays the removal for a bounded time.

Example::

    log = Log.create(LogContext(LocalFiles()), directory, StreamInfo("default/events", uuid4()))
    append = log.append(prepare(body, message_count=1, encoding=Encoding.LONE))
    frames = LogReader(log, append.base_offset).read()
"""

from icestream.model.enums import SyncMode
from icestream.model.frames import Payload, prepare
from icestream.wal.cache import FrameCache, LogCache
from icestream.wal.disk_errors import log_unavailable
from icestream.wal.files import File, Files, LocalFiles
from icestream.wal.group_commit import Append, CommitPool, Pool
from icestream.wal.inspect import LogProblem, LogReport, inspect_directory, segment_ranges
from icestream.wal.log import Log, LogState
from icestream.wal.options import LogContext, LogOptions
from icestream.wal.producers import Producers
from icestream.wal.read_leases import ReadLease, ReadLeases
from icestream.wal.reader import LogReader, check_offset, find_segment, offset_at_time, split_range, time_at_offset
from icestream.wal.records import STREAM_FILE, StreamInfo, load_stream, read_record, write_record
from icestream.wal.repair import RepairReport, repair_directory
from icestream.wal.restore import LogStart, restore_log
from icestream.wal.segment import (
    PRODUCERS_SUFFIX,
    SEGMENT_HEADER_BYTES,
    ActiveSegment,
    LogSnapshot,
    SealedSegment,
    SegmentHeader,
    damaged_segment,
    scan_sound,
    segment_offsets,
    segment_path,
)

__all__ = [
    "PRODUCERS_SUFFIX",
    "SEGMENT_HEADER_BYTES",
    "STREAM_FILE",
    "ActiveSegment",
    "Append",
    "CommitPool",
    "File",
    "Files",
    "FrameCache",
    "LocalFiles",
    "Log",
    "LogCache",
    "LogContext",
    "LogOptions",
    "LogProblem",
    "LogReader",
    "LogReport",
    "LogSnapshot",
    "LogStart",
    "LogState",
    "Payload",
    "Pool",
    "Producers",
    "ReadLease",
    "ReadLeases",
    "RepairReport",
    "SealedSegment",
    "SegmentHeader",
    "StreamInfo",
    "SyncMode",
    "check_offset",
    "damaged_segment",
    "find_segment",
    "inspect_directory",
    "load_stream",
    "log_unavailable",
    "offset_at_time",
    "prepare",
    "read_record",
    "repair_directory",
    "restore_log",
    "scan_sound",
    "segment_offsets",
    "segment_path",
    "segment_ranges",
    "split_range",
    "time_at_offset",
    "write_record",
]
