"""Responses that have exactly the documented fields."""

import json
from typing import Any, TypeVar

import msgspec

Parsed = TypeVar("Parsed")


def exact(kind: type[Parsed], content: Any) -> Parsed:
    """Return a response as a struct; fail if it has fields that the struct does not have, or lacks some."""
    fields = json.loads(content) if isinstance(content, str | bytes) else content
    parsed = msgspec.convert(fields, kind)
    assert json.loads(msgspec.json.encode(parsed)) == fields
    return parsed
