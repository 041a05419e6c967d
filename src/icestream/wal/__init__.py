"""The write-ahead log: what makes an acknowledgement durable.

What it guarantees
------------------
* A batch that `Log.append` returned for is there after any crash, power loss included (sync mode `always`).
* Offsets count from 0 without a gap; readers see durable frames only, so an offset that was seen keeps its bytes.
* Damage is a `DamagedError` that names file, position and offsets; it never becomes a shorter log. Only a torn tail
  behind the last durable byte is cut, and a copy of it is kept.
* After a failed write or sync nothing is acknowledged until the log was recovered and verified.
* A batch sent twice by a named producer is stored once, also when a restart lies between.

What lies on disk
-----------------
One directory per topic::

    stream.json                     topic, stream id, epoch, schemas
    checkpoint.json                 what is known to be durable
    00000000000000000000.log        a segment: frames, named by its first offset
    00000000000000000000.index      sparse index of a sealed segment       (derived)
    00000000000000000000.producers  the producers' state before a segment  (derived)
    upload.json                     how far it is uploaded: the uploader's, not the log's
    torn/                           copies of what recovery cut off

The bytes are drawn in `docs/formats/wal.md`.

Rules
-----
* Writing: only through `Log`, by one process; every change of a name is followed by a sync of its directory.
* Reading: `LogReader`, up to the durable end, every frame checked.
* Deleting: `Log.prune` drops whole sealed segments from the front, and notes the new first offset before. What is being
  read has a lease, which holds it up for a bounded time.
"""

from icestream.model.enums import SyncMode
from icestream.model.frame_bytes import Payload, prepare
from icestream.wal.cache import FrameCache
from icestream.wal.files import Files, LocalFiles
from icestream.wal.group_commit import Append, CommitPool, Pool
from icestream.wal.log import Log, LogState
from icestream.wal.options import LogContext, LogOptions
from icestream.wal.reader import LogReader, check_offset, offset_at_time, time_at_offset
from icestream.wal.records import StreamInfo

__all__ = [
    "Append",
    "CommitPool",
    "Files",
    "FrameCache",
    "LocalFiles",
    "Log",
    "LogContext",
    "LogOptions",
    "LogReader",
    "LogState",
    "Payload",
    "Pool",
    "StreamInfo",
    "SyncMode",
    "check_offset",
    "offset_at_time",
    "prepare",
    "time_at_offset",
]
