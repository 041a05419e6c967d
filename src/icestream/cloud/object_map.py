"""The objects of a topic by offset and time, kept in memory: a few numbers for each."""

import threading
from bisect import bisect_right
from typing import NamedTuple

from icestream.cloud.descriptor import ObjectDescriptor
from icestream.cloud.registry import Descriptions


class Span(NamedTuple):
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
        self._spans: tuple[Span, ...] | None = None
        self._changes = 0
        """Told here so far: what was read from the registry meanwhile may be older."""

    @property
    def is_known(self) -> bool:
        """Whether the registry was read already."""
        return self._spans is not None

    @property
    def spans(self) -> tuple[Span, ...]:
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

    def span_at(self, offset: int) -> Span | None:
        """The object that holds an offset."""
        spans = self.spans
        place = bisect_right(spans, offset, key=lambda span: span.first_offset) - 1
        return spans[place] if place >= 0 and offset < spans[place].end_offset else None

    def span_at_time(self, time_us: int) -> Span | None:
        """The first object with a message that was published at that time or later."""
        # One after the other: an object of messages that a repair gave up has no time, so times need not be in order.
        return next((span for span in self.spans if span.last_time_us >= time_us), None)

    def find(self, offset: int) -> ObjectDescriptor | None:
        """The description of the object that holds an offset, from the registry."""
        span = self.span_at(offset)
        return self._registry.get(span.first_offset) if span is not None else None

    def refresh(self) -> tuple[Span, ...]:
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


def _span(descriptor: ObjectDescriptor) -> Span:
    return Span(descriptor.first_offset, descriptor.end_offset, descriptor.last_time_us, descriptor.size)
