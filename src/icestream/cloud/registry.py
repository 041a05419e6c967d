"""The records about a topic's objects, which the metadata store holds, and an index of them in memory."""

import threading
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from icestream.cloud.object import ObjectDescriptor, UploadHead


class Descriptions(Protocol):
    """The descriptors of one topic's stream, read-only. Thread-safe."""

    def get(self, first_offset: int) -> ObjectDescriptor | None:
        """Return the object that begins at an offset."""

    def objects(self) -> list[ObjectDescriptor]:
        """Return all objects of the stream, by offset. They lack their inline indexes, which `get` returns."""


class Registry(Descriptions, Protocol):
    """The descriptors and the head of one topic's stream. Thread-safe. Raises as the metadata store does.

    Every change is one transaction on the head that was last read or written here. If the head has changed since,
    nothing is changed. Then `StaleEpochError` says that another owner has taken the topic over. A retryable
    `ConflictError` says that an earlier change with an unknown outcome did happen.
    """

    def head(self) -> UploadHead | None:
        """Return the head in the metadata store; None if the topic has none, or one of another stream."""

    @property
    def owned(self) -> UploadHead | None:
        """The head that this owner wrote last; None before the claim, or if the last outcome is unknown."""

    def claim(self, head: UploadHead) -> UploadHead:
        """Become the owner of the objects, and return the head as it was written.

        The head is the topic's first, or has a higher epoch, or the same epoch again. A claim does not change how far
        the topic is uploaded: if the head has moved meanwhile, it raises a retryable `ConflictError`. Offsets that
        others have reserved meanwhile stay reserved.
        """

    def refresh(self) -> UploadHead:
        """Read the head again; raise `StaleEpochError` unless this owner wrote it."""

    def publish(self, descriptor: ObjectDescriptor, head: UploadHead) -> None:
        """Add an object and move the head, in one transaction."""

    def update(self, head: UploadHead) -> None:
        """Replace the head without a change of objects."""

    def remove(self, descriptors: list[ObjectDescriptor], head: UploadHead) -> None:
        """Remove the descriptors of the oldest objects and move the head, in one transaction."""


class ObjectSpan(NamedTuple):
    """What the object map keeps of an object."""

    first_offset: int
    end_offset: int
    last_time_us: int
    size: int


class ObjectMap:
    """The objects of a topic by offset and time, in memory. Thread-safe.

    It reads the registry at first use. Code that changes the registry reports the change here too.
    """

    def __init__(self, registry: Descriptions) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        """Never held while the registry is read."""
        self._spans: tuple[ObjectSpan, ...] | None = None
        self._changes = 0
        """The number of changes reported so far. A read of the registry during a change may be older."""

    @property
    def is_known(self) -> bool:
        """Whether the registry was read."""
        return self._spans is not None

    @property
    def spans(self) -> tuple[ObjectSpan, ...]:
        """All objects, by offset. The tuple is replaced as a whole, so it can be read without a lock."""
        spans = self._spans
        return spans if spans is not None else self.refresh()

    @property
    def first_offset(self) -> int | None:
        """The first offset in the objects; None if there are none."""
        spans = self.spans
        return spans[0].first_offset if spans else None

    @property
    def end_offset(self) -> int:
        """The end of the last object; 0 if there are none."""
        spans = self.spans
        return spans[-1].end_offset if spans else 0

    def span_at(self, offset: int) -> ObjectSpan | None:
        """Return the object that holds an offset."""
        spans = self.spans
        index = bisect_right(spans, offset, key=lambda span: span.first_offset) - 1
        return spans[index] if index >= 0 and offset < spans[index].end_offset else None

    def span_at_time(self, time_us: int, first: int = 0) -> ObjectSpan | None:
        """Return the first object, beginning at `first` or later, with a message published at a time or later."""
        # A linear search: an object of lost messages has no time, so times need not be in order.
        spans = (span for span in self.spans if span.first_offset >= first)
        return next((span for span in spans if span.last_time_us >= time_us), None)

    def find(self, offset: int) -> ObjectDescriptor | None:
        """Return the descriptor of the object that holds an offset, from the registry."""
        span = self.span_at(offset)
        return self._registry.get(span.first_offset) if span is not None else None

    def refresh(self) -> tuple[ObjectSpan, ...]:
        """Read the registry again; for processes that do not own the topic."""
        while True:
            changes = self._changes
            spans = tuple(_span(descriptor) for descriptor in self._registry.objects())
            with self._lock:
                if self._changes == changes:
                    self._spans = spans
                    return spans

    def forget(self) -> None:
        """Drop everything: the next use reads the registry again."""
        with self._lock:
            self._changes += 1
            self._spans = None

    def add(self, descriptor: ObjectDescriptor) -> None:
        """Add a published object. One that a read of the registry has found already is not added twice."""
        with self._lock:
            self._changes += 1
            if self._spans is not None:
                before = (span for span in self._spans if span.first_offset < descriptor.first_offset)
                self._spans = (*before, _span(descriptor))

    def remove_before(self, first_offset: int) -> None:
        """Drop the objects before the one that begins at an offset: their descriptors were removed."""
        with self._lock:
            self._changes += 1
            if self._spans is not None:
                self._spans = tuple(span for span in self._spans if span.first_offset >= first_offset)


def _span(descriptor: ObjectDescriptor) -> ObjectSpan:
    return ObjectSpan(descriptor.first_offset, descriptor.end_offset, descriptor.last_time_us, descriptor.size)


class StaticDescriptions:
    """`Descriptions` of a fixed list of descriptors."""

    def __init__(self, descriptors: Iterable[ObjectDescriptor]) -> None:
        self._by_offset = {descriptor.first_offset: descriptor for descriptor in descriptors}

    def get(self, first_offset: int) -> ObjectDescriptor | None:
        return self._by_offset.get(first_offset)

    def objects(self) -> list[ObjectDescriptor]:
        return [descriptor for _, descriptor in sorted(self._by_offset.items())]
