"""What a store accepts.

The bounds hold for every implementation and stay below etcd's (1.5 MiB a request, 128 operations a transaction), so
that data which fits one store fits all.
"""

from collections.abc import Sequence

from icestream.metadata.store import Condition, Operation, Put, ValueIs
from icestream.model.errors import InvalidRequestError, TooLargeError

MAX_KEY_BYTES = 1_024
MAX_VALUE_BYTES = 1 << 20
MAX_TRANSACTION_BYTES = MAX_VALUE_BYTES + (256 << 10)
MAX_TRANSACTION_OPERATIONS = 128
MAX_PAGE_ENTRIES = 10_000
MAX_PAGE_BYTES = 16 << 20
MAX_LEASE_SECONDS = 365 * 24 * 3600.0


def check_key(key: str, *, operation: str) -> int:
    """The key's size in bytes, if it is a legal key."""
    if not key.startswith("/"):
        raise InvalidRequestError(f"{key[:80]!r} is not a key", operation=operation, remedy="begin keys with /")
    return _text_bytes(key, operation=operation)


def check_prefix(prefix: str, *, operation: str) -> None:
    """A prefix is the beginning of a key; the empty one matches all."""
    if prefix:
        check_key(prefix, operation=operation)


def check_page(limit: int, start_after: str | None, *, operation: str) -> None:
    if not 1 <= limit <= MAX_PAGE_ENTRIES:
        raise InvalidRequestError(f"a page has 1 to {MAX_PAGE_ENTRIES} entries, not {limit}", operation=operation)
    if start_after is not None:
        check_prefix(start_after, operation=operation)


def check_ttl(ttl_seconds: float, *, operation: str) -> None:
    if not 0 < ttl_seconds <= MAX_LEASE_SECONDS:
        raise InvalidRequestError(
            f"a lease lasts more than 0 and at most {MAX_LEASE_SECONDS:.0f} seconds, not {ttl_seconds}",
            operation=operation,
        )


def check_transaction(conditions: Sequence[Condition], operations: Sequence[Operation], *, operation: str) -> None:
    for what, items in (("conditions", conditions), ("operations", operations)):
        if len(items) > MAX_TRANSACTION_OPERATIONS:
            raise TooLargeError(
                f"a transaction has at most {MAX_TRANSACTION_OPERATIONS} {what}, not {len(items)}",
                operation=operation,
                remedy="use several transactions",
            )
    if len({item.key for item in operations}) < len(operations):
        raise InvalidRequestError("a transaction changes a key at most once", operation=operation)
    size = sum(_item_bytes(item, operation=operation) for item in (*conditions, *operations))
    if size > MAX_TRANSACTION_BYTES:
        raise TooLargeError(
            f"a transaction of {size} bytes is beyond the limit of {MAX_TRANSACTION_BYTES}",
            operation=operation,
            remedy="use several transactions",
        )


def _item_bytes(item: Condition | Operation, *, operation: str) -> int:
    size = check_key(item.key, operation=operation)
    if not isinstance(item, Put | ValueIs):
        return size
    if not isinstance(item.value, bytes):
        raise InvalidRequestError(f"a value is bytes, not {type(item.value).__name__}", operation=operation)
    if len(item.value) > MAX_VALUE_BYTES:
        raise TooLargeError(
            f"a value of {len(item.value)} bytes is beyond the limit of {MAX_VALUE_BYTES}",
            operation=operation,
            place=item.key,
        )
    return size + len(item.value)


def _text_bytes(text: str, *, operation: str) -> int:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{text[:80]!r} is not valid Unicode", operation=operation) from None
    if size > MAX_KEY_BYTES:
        raise TooLargeError(
            f"a key of {size} bytes is beyond the limit of {MAX_KEY_BYTES}", operation=operation, place=text[:80]
        )
    if "\0" in text:
        raise InvalidRequestError(f"{text[:80]!r} holds a zero byte", operation=operation)
    return size
