"""The log in the cloud: uploads frames to an object store and reads them back.

What it guarantees
------------------
* An object holds whole durable frames of a range of offsets without a gap, byte for byte as in the log. It exists
  whole or not at all. Its trailer describes it completely, so topics can be recovered from objects alone.
* Described objects follow each other without a gap. A confirmed byte is never sent again.
* A former owner of a topic cannot describe an object: every change is a compare-and-swap on the topic's head.
* Every frame that is read is checked. Damage is a `DamagedError` that names object and offsets.

What lies in the store
----------------------
`{root}/{prefix}/{namespace}/{topic}/{stream id}/{first}-{end}-{epoch}.frames`, and one `topic.json` per stream:
docs/formats/cloud.md. The metadata store holds one descriptor per object and one head per topic.

Modules
-------
* `store`: the protocol of an object store; `opendal_store` implements it, `directory` for a local directory
* `object`: an object's name, descriptor, trailer, and the topic's head
* `object_builder`, `uploader`: make objects out of the log
* `registry`: the records about objects; `reader`: reads frames from an offset on
"""

from icestream.cloud.object import (
    FOOTER_BYTES,
    TOPIC_FILE,
    ObjectDescriptor,
    ObjectName,
    SegmentPart,
    Trailer,
    UploadHead,
    check_trailer,
    damaged_object,
    decode_trailer,
    footer_data_bytes,
    inline_index,
    read_trailer,
    stream_prefix,
    topic_key,
    topic_prefix,
)
from icestream.cloud.object_builder import LogPosition, LogRange, ObjectBuilder, SegmentSlice
from icestream.cloud.reader import CloudReader, ObjectRemovedError, ReadPool, offset_at_time
from icestream.cloud.registry import ObjectMap, ObjectSpan, Registry, StaticDescriptions
from icestream.cloud.store import ObjectInfo, ObjectStore, ObjectWriter
from icestream.cloud.uploader import Uploader, UploadNotes

__all__ = [
    "FOOTER_BYTES",
    "TOPIC_FILE",
    "CloudReader",
    "LogPosition",
    "LogRange",
    "ObjectBuilder",
    "ObjectDescriptor",
    "ObjectInfo",
    "ObjectMap",
    "ObjectName",
    "ObjectRemovedError",
    "ObjectSpan",
    "ObjectStore",
    "ObjectWriter",
    "ReadPool",
    "Registry",
    "SegmentPart",
    "SegmentSlice",
    "StaticDescriptions",
    "Trailer",
    "UploadHead",
    "UploadNotes",
    "Uploader",
    "check_trailer",
    "damaged_object",
    "decode_trailer",
    "footer_data_bytes",
    "inline_index",
    "offset_at_time",
    "read_trailer",
    "stream_prefix",
    "topic_key",
    "topic_prefix",
]
