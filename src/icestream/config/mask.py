"""Hides secrets wherever settings are shown: repr, errors, the `config show` command."""

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

MASK = "**********"

_SECRET_NAME = re.compile(r"secret|passw|pwd|token|credential|key|auth|connection.?string|\bsig\b", re.IGNORECASE)
# Up to the last `@`, so that a password with an unescaped `/` or `@` is hidden whole.
_USERINFO = re.compile(r"(://[^:@/\s]*):.*@", re.DOTALL)
_QUERY = re.compile(
    r"([?&;](?:[^=&;\s]*(?:secret|passw|pwd|token|credential|key|auth)[^=&;\s]*|sig)=)[^&;\s]*", re.IGNORECASE
)


def looks_secret(name: str) -> bool:
    """Whether a free-form property of this name likely holds a secret."""
    return _SECRET_NAME.search(name) is not None


def mask_text(text: str) -> str:
    """`text` without the password of a URI's user and without secret query parameters."""
    return _QUERY.sub(rf"\1{MASK}", _USERINFO.sub(rf"\1:{MASK}@", text))


def masked(value: object) -> object:
    """`value` as plain data that YAML and JSON can hold, with secrets hidden."""
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, str | Path):
        return mask_text(str(value))
    if isinstance(value, Mapping):
        return {str(name): MASK if looks_secret(str(name)) else masked(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return value
