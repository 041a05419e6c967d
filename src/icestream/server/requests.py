"""Requests as JSON objects: parsed, and refused when they hold anything that was not asked for."""

import json
from collections.abc import Set as AbstractSet
from typing import Any

from icestream.model.errors import InvalidRequestError

MAX_REQUEST_BYTES = 1 << 20


def parse_object(data: bytes, *, operation: str, allowed: AbstractSet[str]) -> dict[str, Any]:
    """The JSON object in `data` (nothing means an empty one), if it has no other fields than the allowed ones."""
    if len(data) > MAX_REQUEST_BYTES:
        raise InvalidRequestError(f"the request has {len(data)} bytes, at most {MAX_REQUEST_BYTES} are allowed")
    try:
        fields = json.loads(data) if data else {}
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"not JSON: {error}", operation=operation) from error
    if not isinstance(fields, dict):
        raise InvalidRequestError("a JSON object is expected", operation=operation)
    if unknown := fields.keys() - allowed:
        raise InvalidRequestError(
            f"unknown field {', '.join(sorted(unknown))}",
            operation=operation,
            remedy=f"use {', '.join(sorted(allowed))}" if allowed else "send an empty object",
        )
    return fields


def take(
    fields: dict[str, Any], name: str, kind: type, *, operation: str, required: bool = False, default: Any = None
) -> Any:
    """A field of the given type, which `true` is not when a number is asked for, nor one of more than 64 bits."""
    value = fields.get(name)
    if value is None:
        if required:
            raise InvalidRequestError(f"the field {name} is missing", operation=operation)
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidRequestError(f"{name} must be of type {kind.__name__}, not {value!r:.80}", operation=operation)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise InvalidRequestError(f"{name} must be a number of 64 bits, not {value!r:.80}", operation=operation)
    return value
