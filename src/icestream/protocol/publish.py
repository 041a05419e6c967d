"""Publishing: the request that goes with a batch, its acknowledgement, and the form of messages that travel alone.

Where a batch is, its application metadata is the request as JSON. A message that is published alone travels without
Arrow, whose framing takes longer than the message:

    1: u8 | length of the JSON: u32 | JSON | the message's body, see `icestream.model.messages`

little-endian. A request with parts has one body for each, one after the other. The broker writes bodies into its log as
they are.
"""

import struct
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from icestream.model.errors import InvalidRequestError
from icestream.protocol.parsing import field_names

_OPERATION = "publish"
_HEAD = struct.Struct("<BI")
_LONE = 1

Session = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Which of the producers that were opened under a name sends; 0 for producers that need not be told apart."""


class PublishPart(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What one producer sent of a batch that several share."""

    count: int
    """How many messages of the batch are its own; they follow those of the part before it."""
    id: int
    """The client's number of the part, which its acknowledgement repeats."""
    producer: str = ""
    sequence: int | None = None
    session: Session = 0
    nbytes: int | None = None
    """Length of the part's body where the request carries lone messages; else left out."""


class PublishRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The application metadata of a batch."""

    topic: str
    producer: str = ""
    sequence: int | None = None
    session: Session = 0
    ack: str | None = None
    """An `AckLevel`. It is text here, so that the refusal of another word can name the request's `id`."""
    more: bool = False
    """Whether the client sends more at once. Then the broker reads on, and another thread commits the batch."""
    id: int | None = None
    """The client's number of the batch, which its acknowledgement repeats. Default: its number on the stream."""
    seen: int = 0
    """How many acknowledgements the client has read from the stream. Many unread ones go through a queue."""
    parts: list[PublishPart] | None = None
    """Where several producers share the batch: what each of them sent. Then these name producer and sequence."""


class PublishAck(Struct, omit_defaults=True):
    """The acknowledgement of a batch, or of one producer's part of it."""

    id: int
    """Of the request, or of the part."""
    base_offset: int
    count: int
    """How many messages were stored, from `base_offset` on."""
    publish_time_us: int
    duplicate: bool = False
    snapshot_id: int | None = None


class PublishOutcome(Struct):
    """What a client reads from a publish stream: an acknowledgement, an error, or one of them for each part."""

    id: int | None = None
    base_offset: int = -1
    publish_time_us: int = 0
    duplicate: bool = False
    snapshot_id: int | None = None
    error: dict[str, Any] | None = None
    answers: list["PublishOutcome"] | None = None
    """The outcomes of the parts of a request."""


_decode = msgspec.json.Decoder(PublishRequest).decode
parse_outcome = msgspec.json.Decoder(PublishOutcome).decode


def parse_publish(metadata: Any) -> PublishRequest:
    """Return the request in a batch's metadata."""
    try:
        request = _decode(metadata)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            str(error),
            operation=_OPERATION,
            remedy=f"the application metadata is a JSON object of {', '.join(field_names(PublishRequest))}",
        ) from error
    for sent in request.parts or (request,):
        if sent.producer and sent.sequence is None:
            raise InvalidRequestError(
                "a named producer must number its batches: sequence is missing", operation=_OPERATION
            )
    return request


def lone_message(request: bytes, *bodies: bytes) -> bytes:
    """Return a request and the bodies of its messages as one message of the stream."""
    return b"".join((_HEAD.pack(_LONE, len(request)), request, *bodies))


def split_lone_message(data: bytes | memoryview) -> tuple[memoryview, memoryview]:
    """Return the request, and the body or bodies."""
    if len(data) < _HEAD.size or data[0] != _LONE:
        raise InvalidRequestError(
            "neither a batch nor a lone message",
            operation=_OPERATION,
            remedy="docs/protocol.md describes both",
        )
    end = _HEAD.size + _HEAD.unpack_from(data)[1]
    if end > len(data):
        raise InvalidRequestError(f"the request ends at byte {end} of {len(data)}", operation=_OPERATION)
    view = memoryview(data)
    return view[_HEAD.size : end], view[end:]
