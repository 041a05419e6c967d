"""The log in the cloud: frames shipped to an object store, and read back from there.

What it guarantees
------------------
* An object holds whole durable frames, byte for byte as the log has them, of a range of offsets without a gap. It is
  there wholly or not at all, and says all about itself.
* A described object follows on the one before it. A confirmed byte is never sent again.
* An owner of the past cannot describe an object: every change is a compare-and-swap on the topic's head.
* Damage is a `DamagedError` that names object and offsets; every frame that is read is checked.

`names` and `trailer` say what lies in the store, `descriptor` and `registry` what the metadata store knows of it.
`reader` reads frames on from an offset: `frame_walk` checks them, `read_ahead` fetches what follows meanwhile.
"""

from icestream.cloud.object import (
    FOOTER_BYTES,
    ObjectDescriptor,
    SegmentPart,
    Trailer,
    UploadHead,
    check_trailer,
    damaged_object,
    decode_trailer,
    footer_data_bytes,
    inline_index,
)
from icestream.cloud.registry import ObjectMap, ObjectSpan, Registry
from icestream.cloud.store import ObjectInfo, ObjectStore, ObjectWriter

__all__ = [
    "FOOTER_BYTES",
    "ObjectDescriptor",
    "ObjectInfo",
    "ObjectMap",
    "ObjectSpan",
    "ObjectStore",
    "ObjectWriter",
    "Registry",
    "SegmentPart",
    "Trailer",
    "UploadHead",
    "check_trailer",
    "damaged_object",
    "decode_trailer",
    "footer_data_bytes",
    "inline_index",
]
