"""Published messages as JSON, made into an Arrow batch."""

import base64

import pyarrow as pa

from icestream.model.errors import InvalidMessageError, InvalidRequestError
from icestream.model.messages import message_batch
from icestream.server.http.models import NewMessage, Publish

_OPERATION = "publish"


def batch_of(request: Publish) -> pa.RecordBatch:
    messages = request.messages
    payloads = [_payload(message, index) for index, message in enumerate(messages)]
    keys = [_key(message, index) for index, message in enumerate(messages)]
    attributes = [list(message.attributes.items()) if message.attributes else None for message in messages]
    return message_batch(payloads, keys if any(key is not None for key in keys) else None, attributes)


def check_producer_given(producer: str | None, sequence: int | None) -> tuple[str, int]:
    """Producer and sequence as the storage takes them; one is nothing without the other."""
    if (producer is None) != (sequence is None):
        missing = "sequence" if sequence is None else "producer"
        raise InvalidRequestError(f"{missing} is missing", operation=_OPERATION, remedy="give producer and sequence")
    if producer == "":
        raise InvalidRequestError("producer is empty", operation=_OPERATION, remedy="name it or leave it out")
    return producer or "", sequence or 0


def _payload(message: NewMessage, index: int) -> bytes:
    payload = _either(message.payload, message.payload_base64, "payload", index)
    if payload is None:
        raise InvalidMessageError(f"messages.{index} has no payload", operation=_OPERATION)
    return payload


def _key(message: NewMessage, index: int) -> bytes | None:
    return _either(message.key, message.key_base64, "key", index)


def _either(text: str | None, encoded: str | None, name: str, index: int) -> bytes | None:
    if encoded is None:
        return text.encode() if text is not None else None
    if text is not None:
        raise InvalidMessageError(f"messages.{index} has both {name} and {name}_base64", operation=_OPERATION)
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise InvalidMessageError(f"messages.{index}.{name}_base64: {error}", operation=_OPERATION) from None
