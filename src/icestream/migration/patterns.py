"""Patterns of paths, which mean the same on a disk and in a bucket.

`*`, `?` and `[…]` stay within a folder's or a file's name; `**` stands for any number of folders, none as well.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from icestream.model.errors import InvalidRequestError

_SIGN = re.compile(r"[*?\[]")
_ANY_FOLDERS = "**"


def split_pattern(text: str) -> tuple[str, str]:
    """The folder before the first part with a sign in it, and the pattern below; no pattern where there is no sign."""
    if (sign := _SIGN.search(text)) is None:
        return text, ""
    below = text.rfind("/", 0, sign.start()) + 1
    pattern = text[below:]
    if any(_ANY_FOLDERS in part and part != _ANY_FOLDERS for part in pattern.split("/")):
        raise InvalidRequestError(
            f"** in {text} is only a part of a name", operation="find files", remedy="write /**/ for any folders"
        )
    return text[:below], f"{pattern}/*" if pattern.split("/")[-1] == _ANY_FOLDERS else pattern


def matches(path: str, pattern: str) -> bool:
    return _match(path.split("/"), pattern.split("/"))


def _match(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns or not parts:
        return not patterns and not parts
    if patterns[0] == _ANY_FOLDERS:
        return _match(parts, patterns[1:]) or _match(parts[1:], patterns)
    return fnmatchcase(parts[0], patterns[0]) and _match(parts[1:], patterns[1:])
