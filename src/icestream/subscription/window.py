"""The state of every message between a subscription's floor and the offset it has read to.

Arrays hold one entry a message: a byte of state, the consumer that has it and, only once they are needed, its slot, its
counts and when it is due. No object is made for a message. The arrays grow with the window and shrink when it is empty.
All calls are made under the subscription's lock.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from icestream.subscription.progress import (
    MAX_PENDING,
    PENDING_COLUMNS,
    Offsets,
    Pending,
    Ranges,
    clipped,
    expanded,
    ranges_where,
)

Rows = npt.NDArray[np.int64]
"""Indexes in the arrays; valid until the window grows."""
Mask = npt.NDArray[np.bool_]

NEVER_MS = np.iinfo(np.int64).max
_MOST = np.iinfo(np.uint16).max
_FIRST_CAPACITY = 1_024
_FIRST_SCAN, _LARGEST_SCAN = 1_024, 65_536


class MessageState:
    """Plain numbers, because whole arrays are compared with them."""

    ACKNOWLEDGED: Final = 0
    READY: Final = 1
    """To be delivered, for the first time or again."""
    DELIVERED: Final = 2
    DELAYED: Final = 3
    """To be delivered again, when it is due."""
    DEAD: Final = 4
    """Failed too often: waits to be stored in the dead-letter topic."""


class Window:
    def __init__(self, floor: int) -> None:
        self.floor = self.end = floor
        self._base = floor
        self._arrays: dict[str, Any] = {}
        self._add_array("state", np.uint8, 0)

    def __len__(self) -> int:
        return self.end - self.floor

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self._arrays.values())

    # Growing and shrinking

    def extend(self, end: int) -> None:
        """Add the offsets up to `end`. They count as acknowledged until another call changes that."""
        count, live = end - self.end, self.end - self.floor
        used = self.end - self._base
        if used + count > len(self._arrays["state"]):
            capacity = max(_FIRST_CAPACITY, 2 * (live + count))
            for name, array in self._arrays.items():
                grown = np.full(capacity, _DEFAULTS.get(name, 0), array.dtype)
                grown[:live] = array[used - live : used]
                self._arrays[name] = grown
            self._base = self.floor
        self.end = end

    def jump(self, offset: int) -> None:
        """Continue at another offset, with an empty window."""
        self.floor = self.end = offset
        self._clear()

    def settle(self) -> bool:
        """Move the floor past what is acknowledged; return whether it moved."""
        state, low, high = self._arrays["state"], self.floor - self._base, self.end - self._base
        row, size = low, _FIRST_SCAN
        while row < high:
            chunk = state[row : min(row + size, high)] != MessageState.ACKNOWLEDGED
            found = int(chunk.argmax())
            if chunk[found]:
                row += found
                break
            row, size = row + len(chunk), min(2 * size, _LARGEST_SCAN)
        self.floor = row + self._base
        if self.floor == self.end:
            self._clear()
        return row > low

    def _clear(self) -> None:
        """Start again with small arrays, and without those that are seldom needed. The window is empty."""
        kept = {name: self._arrays[name].dtype for name in ("state", "slot", "consumer") if name in self._arrays}
        small = len(self._arrays["state"]) <= _FIRST_CAPACITY
        for name in list(self._arrays):
            if name not in kept:
                del self._arrays[name]
            elif small:
                self._arrays[name].fill(0)
            else:
                self._arrays[name] = np.zeros(_FIRST_CAPACITY, kept[name])
        self._base = self.floor

    def _add_array(self, name: str, dtype: Any, default: int) -> Any:
        array = self._arrays.get(name)
        if array is None:
            capacity = len(self._arrays["state"]) if self._arrays else _FIRST_CAPACITY
            array = self._arrays[name] = np.full(capacity, default, dtype)
        return array

    # Rows

    def rows(self, offsets: Offsets) -> Rows:
        return offsets - self._base

    def offsets(self, rows: Rows) -> Offsets:
        return rows + self._base

    def rows_in(self, ranges: Ranges) -> Rows:
        """Return the rows of these ranges that are in the window."""
        return expanded(clipped(ranges, self.floor, self.end)) - self._base

    def held_in(self, ranges: Ranges, consumer: int) -> Rows:
        """Return the messages in these ranges that a consumer holds."""
        rows = self.rows_in(ranges)
        held = self._arrays["state"][rows] == MessageState.DELIVERED
        held &= self._consumers(rows) == consumer
        found: Rows = rows if held.all() else rows[held]
        return found

    def held_by(self, consumer: int) -> Rows:
        """Return all messages that a consumer holds."""
        low, high = self.floor - self._base, self.end - self._base
        rows: Rows = np.flatnonzero(self._arrays["state"][low:high] == MessageState.DELIVERED) + low
        found: Rows = rows[self._consumers(rows) == consumer]
        return found

    def _consumers(self, rows: Rows) -> npt.NDArray[np.uint16]:
        """Return which consumer holds each row. The array exists only once there was a consumer other than 0."""
        array = self._arrays.get("consumer")
        found: npt.NDArray[np.uint16] = np.zeros(len(rows), np.uint16) if array is None else array[rows]
        return found

    def open_in(self, ranges: Ranges) -> Rows:
        """Return the messages in these ranges that are not acknowledged."""
        rows = self.rows_in(ranges)
        found: Rows = rows[self._arrays["state"][rows] != MessageState.ACKNOWLEDGED]
        return found

    def delivered_of(self, rows: Rows) -> Rows:
        found: Rows = rows[self._arrays["state"][rows] == MessageState.DELIVERED]
        return found

    def in_state(self, state: int) -> Rows:
        low, high = self.floor - self._base, self.end - self._base
        return np.flatnonzero(self._arrays["state"][low:high] == state) + low

    def ready(self, rows: Rows, allowed: Mask | None = None) -> Mask:
        """Return which rows can be delivered to a consumer that may get these slots."""
        mask: Mask = self._arrays["state"][rows] == MessageState.READY
        if allowed is not None:
            mask &= allowed[self._arrays["slot"][rows]]
        return mask

    def first_ready(self, start: int, end: int, allowed: Mask | None = None) -> int | None:
        """Return the first offset in `[start, end)` that can be delivered to a consumer that may get these slots."""
        row, high = max(start, self.floor) - self._base, min(end, self.end) - self._base
        state, slot, size = self._arrays["state"], self._arrays.get("slot"), _FIRST_SCAN
        while row < high:
            until = min(row + size, high)
            chunk = state[row:until] == MessageState.READY
            if allowed is not None and slot is not None:
                chunk &= allowed[slot[row:until]]
            found = int(chunk.argmax())
            if chunk[found]:
                return row + found + self._base
            row, size = until, min(2 * size, _LARGEST_SCAN)
        return None

    def slots(self, rows: Rows) -> npt.NDArray[np.uint16]:
        found: npt.NDArray[np.uint16] = self._arrays["slot"][rows]
        return found

    def redeliveries(self, rows: Rows) -> npt.NDArray[np.uint16] | None:
        """Return how often these were delivered before; None: none of them ever was."""
        array = self._arrays.get("redeliveries")
        return None if array is None else array[rows]

    def failures(self, rows: Rows) -> npt.NDArray[np.uint16]:
        array = self._arrays.get("failures")
        return np.zeros(len(rows), np.uint16) if array is None else array[rows]

    # Changes

    def put_ready(self, rows: Rows, slots: npt.NDArray[np.uint16] | None) -> None:
        self._arrays["state"][rows] = MessageState.READY
        if slots is not None:
            self._add_array("slot", np.uint16, 0)[rows] = slots

    def put_acknowledged(self, rows: Rows) -> None:
        self._arrays["state"][rows] = MessageState.ACKNOWLEDGED

    def put_dead(self, rows: Rows) -> None:
        self._arrays["state"][rows] = MessageState.DEAD

    def deliver(self, rows: Rows, consumer: int, due_ms: int | None) -> None:
        self._arrays["state"][rows] = MessageState.DELIVERED
        if consumer or "consumer" in self._arrays:
            self._add_array("consumer", np.uint16, 0)[rows] = consumer
        if due_ms is not None or "due" in self._arrays:
            self._add_array("due", np.int64, NEVER_MS)[rows] = NEVER_MS if due_ms is None else due_ms

    def take_back(self, rows: Rows, *, failed: bool, due_ms: int | None = None) -> None:
        """Make delivered messages ready again, at once or when they are due."""
        self._count("redeliveries", rows)
        if failed:
            self._count("failures", rows)
        if due_ms is None:
            self._arrays["state"][rows] = MessageState.READY
        else:
            self._arrays["state"][rows] = MessageState.DELAYED
            self._add_array("due", np.int64, NEVER_MS)[rows] = due_ms

    def _count(self, name: str, rows: Rows) -> None:
        counts = self._add_array(name, np.uint16, 0)
        counts[rows] = np.minimum(counts[rows], _MOST - 1) + 1

    def due(self, now_ms: int) -> tuple[Rows, Rows, int | None]:
        """Return the delivered messages that are overdue, the delayed ones that are due, and the next due time."""
        nothing = np.empty(0, np.int64)
        if "due" not in self._arrays:
            return nothing, nothing, None
        low, high = self.floor - self._base, self.end - self._base
        state, due = self._arrays["state"][low:high], self._arrays["due"][low:high]
        waiting = (state == MessageState.DELIVERED) | (state == MessageState.DELAYED)
        late = waiting & (due <= now_ms)
        rest = due[waiting & ~late]
        following = int(rest.min()) if len(rest) else NEVER_MS
        rows = np.flatnonzero(late)
        delivered = state[rows] == MessageState.DELIVERED
        return rows[delivered] + low, rows[~delivered] + low, None if following == NEVER_MS else following

    def wake(self, rows: Rows) -> None:
        """Make delayed or dead messages ready."""
        self._arrays["state"][rows] = MessageState.READY

    # For the record and the figures

    def acknowledged(self) -> Ranges:
        low, high = self.floor - self._base, self.end - self._base
        return ranges_where(self._arrays["state"][low:high] == MessageState.ACKNOWLEDGED, self.floor)

    def held_counts(self, consumers: int) -> list[int]:
        """Return how many messages each consumer holds."""
        rows = self.in_state(MessageState.DELIVERED)
        found: list[int] = np.bincount(self._consumers(rows), minlength=consumers).tolist()
        return found

    def pending(self) -> Pending:
        """Return the open messages that were delivered before, as a bounded number of ranges with equal counts."""
        if "redeliveries" not in self._arrays:
            return np.empty((0, PENDING_COLUMNS), np.int64)
        low, high = self.floor - self._base, self.end - self._base
        counted = self._arrays["redeliveries"][low:high] > 0
        rows = np.flatnonzero(counted & (self._arrays["state"][low:high] != MessageState.ACKNOWLEDGED)) + low
        due = np.zeros(len(rows), np.int64)
        if "due" in self._arrays:
            due = np.where(self._arrays["state"][rows] == MessageState.DELAYED, self._arrays["due"][rows], 0)
        values = np.column_stack((self._arrays["redeliveries"][rows], self.failures(rows), due)).astype(np.int64)
        breaks = (np.diff(rows) != 1) | (np.diff(values, axis=0) != 0).any(axis=1)
        first = np.concatenate(([0], np.flatnonzero(breaks) + 1))[: MAX_PENDING + 1] if len(rows) else rows
        if not len(first):
            return np.empty((0, PENDING_COLUMNS), np.int64)
        last = np.concatenate((first[1:] - 1, [len(rows) - 1]))
        found = np.column_stack((rows[first] + self._base, rows[last] + self._base + 1, values[first]))
        return found[:MAX_PENDING]

    def restore(self, rows: Rows, redeliveries: int, failures: int, due_ms: int) -> None:
        """Set the counts of ready messages to what `pending` has recorded."""
        self._add_array("redeliveries", np.uint16, 0)[rows] = min(redeliveries, _MOST)
        self._add_array("failures", np.uint16, 0)[rows] = min(failures, _MOST)
        if due_ms:
            self._arrays["state"][rows] = MessageState.DELAYED
            self._add_array("due", np.int64, NEVER_MS)[rows] = due_ms


_DEFAULTS = {"due": NEVER_MS}
