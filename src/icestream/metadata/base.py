"""The calls that every store derives from its transaction."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from icestream.metadata.store import (
    Absent,
    Condition,
    Delete,
    Exists,
    Operation,
    Put,
    RevisionIs,
    TransactionResult,
)
from icestream.model.errors import ConflictError


class BaseStore(ABC):
    @abstractmethod
    def transaction(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> TransactionResult: ...

    @abstractmethod
    def close(self) -> None: ...

    def put(self, key: str, value: bytes, lease: int | None = None) -> int:
        return self.transaction((), (Put(key, value, lease),)).revision

    def create(self, key: str, value: bytes, lease: int | None = None) -> int:
        result = self.transaction((Absent(key),), (Put(key, value, lease),))
        if not result.succeeded:
            raise ConflictError("the key exists already", operation="create", place=key)
        return result.revision

    def compare_and_swap(self, key: str, expected_revision: int, value: bytes, lease: int | None = None) -> int:
        result = self.transaction((RevisionIs(key, expected_revision),), (Put(key, value, lease),))
        if not result.succeeded:
            raise ConflictError(
                f"the key is no longer at revision {expected_revision}",
                operation="compare and swap",
                place=key,
                remedy="read it again and decide anew",
            )
        return result.revision

    def delete(self, key: str) -> bool:
        return self.transaction((Exists(key),), (Delete(key),)).succeeded

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
