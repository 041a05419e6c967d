"""Whether a serialized request ends where its last field does, so that what is put behind it stays apart.

A parser does not see where one of several joined requests ends: a field that announces more bytes than its request has
takes them from the next one, and what it takes is no longer a span or a log record of anybody. A parser that is given
such a request alone refuses it.
"""

_RESOURCES = 0x0A
"""The tag of field 1, of bytes with a length: the one field that requests of all signals have."""
_MAX_LENGTH_BYTES = 5
_MAX_FIELDS = 1000
"""Looked at in a request: enough for a sender that has gathered much, and soon done."""


def is_whole(request: bytes) -> bool:
    """Whether a request is nothing but complete fields of resources, and not very many.

    Only the fields' lengths are looked at, not what is in them. What has other fields, however legal, counts as not
    whole: nobody sends them, and so nothing depends on how a parser reads them.
    """
    at, end = 0, len(request)
    for _ in range(_MAX_FIELDS):
        if at == end:
            return True
        if request[at] != _RESOURCES:
            return False
        at = _end_of_field(request, at + 1)
        if at > end:
            return False
    return at == end


def _end_of_field(request: bytes, at: int) -> int:
    """Where the field ends whose length stands at `at`; beyond the request if it has no length."""
    length = 0
    for number, byte in enumerate(request[at : at + _MAX_LENGTH_BYTES]):
        length |= (byte & 0x7F) << (7 * number)
        if not byte & 0x80:
            return at + number + 1 + length
    return len(request) + 1
