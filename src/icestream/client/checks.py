"""What a single message may be made of, checked before it joins others in a batch that it could spoil."""

from collections.abc import Mapping
from typing import Any

from icestream.model.errors import InvalidMessageError

MESSAGE_OVERHEAD_BYTES = 24
"""Arrow's offsets and null bits a message, rounded up; so the client's limits are never wider than the broker's."""

ATTRIBUTE_OVERHEAD_BYTES = 16


def checked(
    payload: Any, key: Any, attributes: Mapping[str, str] | None
) -> tuple[bytes, bytes | None, list[tuple[str, str]] | None, int]:
    """Values that Arrow will take, copied where the caller could still change them, and their size."""
    payload = _bytes(payload, "payload")
    size = len(payload) + MESSAGE_OVERHEAD_BYTES
    if key is not None:
        key = _bytes(key, "key")
        size += len(key)
    if attributes is None:
        return payload, key, None, size
    try:
        pairs = list(attributes.items())
        for name, value in pairs:
            size += len(name.encode()) + len(value.encode()) + ATTRIBUTE_OVERHEAD_BYTES
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidMessageError(
            f"attributes are a dictionary of texts, not {attributes!r:.80}: {error}", operation="send"
        ) from error
    return payload, key, pairs, size


def _bytes(value: Any, what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidMessageError(
        f"a {what} is bytes, not {type(value).__name__}", operation="send", remedy='use text.encode() or b"…"'
    )
