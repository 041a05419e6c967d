"""Names, validated once, and safe as a path, a table identifier and a metadata key.

A topic is `namespace/name`. Both parts are 1 to 100 ASCII letters, digits, `_`, `-` or `.`, and begin with a letter,
a digit or `_`: so no part can be `.` or `..`, hold a separator, or hide as a dot file. A topic's name does not end in
`__parquet`: that is the table of its Parquet copy, see `icestream.model.enums.StorageFormat`.
"""

import re
from functools import lru_cache
from typing import NamedTuple, Self

from icestream.model.errors import InvalidNameError

DEFAULT_NAMESPACE = "default"
MAX_PART_LENGTH = 100
MAX_PRODUCER_LENGTH = 200
COPY_SUFFIX = "__parquet"
DEFAULT_URL = "grpc://127.0.0.1:8815"
"""Where clients and commands look for a broker unless they are told."""

_PART = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.\-]{{0,{MAX_PART_LENGTH - 1}}}", re.ASCII)
# What errors recommend: a topic may begin with `_`, but such tenants are reserved.
_ALLOWED = f"1 to {MAX_PART_LENGTH} of A-Z a-z 0-9 _ - . and begin with a letter or a digit"


class TopicName(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: "str | TopicName") -> Self:
        """Parse `namespace/name`, or a bare `name` in the default namespace."""
        if isinstance(text, TopicName):
            return cls(*text)
        if not isinstance(text, str):
            raise InvalidNameError(f"a topic name is text, not {type(text).__name__}", operation="topic name")
        return cls(*_parts(text))


@lru_cache(maxsize=4096)
def _parts(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash:
        namespace, name = DEFAULT_NAMESPACE, namespace
    for what, part in (("namespace", namespace), ("name", name)):
        check_part(part, what=f"topic {what}", whole=text)
    if name.endswith(COPY_SUFFIX):
        raise InvalidNameError(
            f"{_shorten(text)!r} is the table of a Parquet copy, not a topic",
            operation="name",
            remedy=f"name the topic itself, without {COPY_SUFFIX}; commands for the topic also cover these files, and "
            "maintenance does not change them",
        )
    return namespace, name


def copy_of(topic: TopicName) -> TopicName:
    """Return the name of the topic's Parquet copy in the catalog. No topic can have such a name."""
    return TopicName(topic.namespace, topic.name + COPY_SUFFIX)


def is_copy(table: TopicName) -> bool:
    """Return whether a table is the Parquet copy of a topic."""
    return table.name.endswith(COPY_SUFFIX)


def topic_of_table(table: TopicName) -> TopicName:
    """Return the topic that a table belongs to."""
    return TopicName(table.namespace, table.name.removesuffix(COPY_SUFFIX))


def check_part(part: str, *, what: str, whole: str = "") -> str:
    """Return `part` if it is a valid namespace, topic or subscription name; raise if not."""
    if not _PART.fullmatch(part):
        shown = _shorten(whole or part)
        raise InvalidNameError(
            f"{_shorten(part)!r} is not a legal {what}" + (f" in {shown!r}" if whole and whole != part else ""),
            operation="name",
            remedy=f"use {_ALLOWED}",
        )
    return part


def check_producer(name: str) -> str:
    """Return `name` if it can name a producer (printable, 1 to 200 bytes of UTF-8); raise if not."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = -1
    if not 1 <= size <= MAX_PRODUCER_LENGTH or not name.isprintable():
        raise InvalidNameError(
            f"{_shorten(name)!r} is not a legal producer name",
            operation="name",
            remedy=f"use 1 to {MAX_PRODUCER_LENGTH} bytes of printable UTF-8",
        )
    return name


def _shorten(text: str) -> str:
    limit = 80
    return text if len(text) <= limit else text[:limit] + "…"


def url_host(host: str) -> str:
    """Return a host as a URL names it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
