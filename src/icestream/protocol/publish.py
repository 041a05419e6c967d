"""Messages that producers publish one at a time, on their way: without Arrow, whose framing takes longer than they do.

Where a batch is, its application metadata is JSON. Here it is all there is:

    1: u8 | length of the JSON: u32 | JSON | the message's body, see `icestream.model.lone_message`

little-endian. Where the JSON has parts, there is a body for each, one behind the other. The broker writes bodies into
its log as they are.
"""

import struct

from icestream.model.errors import InvalidRequestError

_HEAD = struct.Struct("<BI")
_LONE = 1


def lone_message(request: bytes, *bodies: bytes) -> bytes:
    return b"".join((_HEAD.pack(_LONE, len(request)), request, *bodies))


def split_lone_message(data: bytes) -> tuple[memoryview, memoryview]:
    """Request, and body or bodies."""
    if len(data) < _HEAD.size or data[0] != _LONE:
        raise InvalidRequestError(
            "neither a batch nor a message that travels alone",
            operation="publish",
            remedy="docs/protocol.md says how both look",
        )
    end = _HEAD.size + _HEAD.unpack_from(data)[1]
    if end > len(data):
        raise InvalidRequestError(f"the request ends at byte {end} of {len(data)}", operation="publish")
    view = memoryview(data)
    return view[_HEAD.size : end], view[end:]
