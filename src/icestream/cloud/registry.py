"""What the uploader, the reader and retention need of the records about objects. The metadata store has them."""

import threading
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from icestream.cloud.object import ObjectDescriptor, UploadHead


class Descriptions(Protocol):
    """The objects of one topic's stream, to be looked at. Thread-safe."""

    def get(self, first_offset: int) -> ObjectDescriptor | None:
        """The object that begins at an offset."""

    def objects(self) -> list[ObjectDescriptor]:
        """All of the stream's, by offset; without their inline indexes, which `get` has."""


class Registry(Descriptions, Protocol):
    """The objects of one topic's stream. Thread-safe. Raises as the metadata store does.

    Every change is one transaction on the head that was last read or written here. Where the head has changed since,
    nothing is changed, and `StaleEpochError` is raised if another owner has taken the topic over; else a retryable
    `ConflictError`: an earlier change, whose outcome was not known, has happened.
    """

    def head(self) -> UploadHead | None:
        """As the store has it now; None where the topic has none, or one of another stream."""

    @property
    def owned(self) -> UploadHead | None:
        """As this owner wrote it last; None before the claim, or when the last outcome is not known."""

    def claim(self, head: UploadHead) -> UploadHead:
        """Begin to own the objects: the first head of a topic, or one with a higher epoch, or the same epoch again.

        Returns the head as it was written. How far the topic is does not change by that: a head that has moved
        meanwhile is a retryable `ConflictError`. What others have reserved meanwhile stays reserved.
        """

    def refresh(self) -> UploadHead:
        """As the store has it, to go on with it; raises `StaleEpochError` unless this owner wrote it."""

    def publish(self, descriptor: ObjectDescriptor, head: UploadHead) -> None:
        """Add an object and move the head, both or none."""

    def update(self, head: UploadHead) -> None:
        """Replace the head, with no change of objects."""

    def remove(self, descriptors: list[ObjectDescriptor], head: UploadHead) -> None:
        """Take objects off the record, oldest first, and move the head, all or none."""


# --------------------
# The objects of a topic by offset and time, kept in memory: a few numbers for each.


class ObjectSpan(NamedTuple):
    """What is kept of an object."""

    first_offset: int
    end_offset: int
    last_time_us: int
    size: int


class ObjectMap:
    """Thread-safe. Read from the registry at first use; who changes the registry tells it here too."""

    def __init__(self, registry: Descriptions) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        """Held briefly: never while the registry is read."""
        self._spans: tuple[ObjectSpan, ...] | None = None
        self._changes = 0
        """Told here so far: what was read from the registry meanwhile may be older."""

    @property
    def is_known(self) -> bool:
        """Whether the registry was read already."""
        return self._spans is not None

    @property
    def spans(self) -> tuple[ObjectSpan, ...]:
        """By offset; replaced as one, so that it can be looked through without a lock."""
        spans = self._spans
        return spans if spans is not None else self.refresh()

    @property
    def first_offset(self) -> int | None:
        """None if there are no objects."""
        spans = self.spans
        return spans[0].first_offset if spans else None

    @property
    def end_offset(self) -> int:
        """0 if there are no objects."""
        spans = self.spans
        return spans[-1].end_offset if spans else 0

    def span_at(self, offset: int) -> ObjectSpan | None:
        """The object that holds an offset."""
        spans = self.spans
        place = bisect_right(spans, offset, key=lambda span: span.first_offset) - 1
        return spans[place] if place >= 0 and offset < spans[place].end_offset else None

    def span_at_time(self, time_us: int) -> ObjectSpan | None:
        """The first object with a message that was published at that time or later."""
        # One after the other: an object of messages that a repair gave up has no time, so times need not be in order.
        return next((span for span in self.spans if span.last_time_us >= time_us), None)

    def find(self, offset: int) -> ObjectDescriptor | None:
        """The description of the object that holds an offset, from the registry."""
        span = self.span_at(offset)
        return self._registry.get(span.first_offset) if span is not None else None

    def refresh(self) -> tuple[ObjectSpan, ...]:
        """Read all of it anew, for who does not own the topic."""
        while True:
            changes = self._changes
            spans = tuple(_span(descriptor) for descriptor in self._registry.objects())
            with self._lock:
                if self._changes == changes:
                    self._spans = spans
                    return spans

    def forget(self) -> None:
        """What is known here may be wrong: the next use reads it anew."""
        with self._lock:
            self._changes += 1
            self._spans = None

    def add(self, descriptor: ObjectDescriptor) -> None:
        """It was published. One that a look at the registry has found already is not there twice."""
        with self._lock:
            self._changes += 1
            if self._spans is not None:
                before = (span for span in self._spans if span.first_offset < descriptor.first_offset)
                self._spans = (*before, _span(descriptor))

    def remove_before(self, first_offset: int) -> None:
        """The objects before the one that begins there were taken off the record."""
        with self._lock:
            self._changes += 1
            if self._spans is not None:
                self._spans = tuple(span for span in self._spans if span.first_offset >= first_offset)


def _span(descriptor: ObjectDescriptor) -> ObjectSpan:
    return ObjectSpan(descriptor.first_offset, descriptor.end_offset, descriptor.last_time_us, descriptor.size)


# --------------------
# Descriptions of objects that are at hand, in place of a registry.


class StaticDescriptions:
    def __init__(self, descriptors: Iterable[ObjectDescriptor]) -> None:
        self._by_offset = {descriptor.first_offset: descriptor for descriptor in descriptors}

    def get(self, first_offset: int) -> ObjectDescriptor | None:
        return self._by_offset.get(first_offset)

    def objects(self) -> list[ObjectDescriptor]:
        return [descriptor for _, descriptor in sorted(self._by_offset.items())]
