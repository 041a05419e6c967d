"""The state of every message between a subscription's floor and the place it has read to.

Arrays with one entry a message, never an object: a byte of state, the consumer that has it, and, only once they are
needed, its slot, its counts and when it is due. The arrays grow with the window and give their memory back when it
empties. All calls are made under the subscription's lock.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from icestream.subscription.offset_ranges import Offsets, Ranges, clipped, expanded, ranges_where
from icestream.subscription.progress import MAX_PENDING, PENDING_COLUMNS, Pending

Rows = npt.NDArray[np.int64]
"""Places in the arrays; they hold until the window grows."""
Mask = npt.NDArray[np.bool_]

NEVER_MS = np.iinfo(np.int64).max
_MOST = np.iinfo(np.uint16).max
_FIRST_CAPACITY = 1_024
_FIRST_SCAN, _LARGEST_SCAN = 1_024, 65_536


class MessageState:
    """Plain numbers, because arrays are compared with them all the time."""

    ACKNOWLEDGED: Final = 0
    READY: Final = 1
    """To be delivered, for the first time or again."""
    DELIVERED: Final = 2
    DELAYED: Final = 3
    """To be delivered again, when it is due."""
    DEAD: Final = 4
    """Delivered too often: on its way to the dead-letter topic."""


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
        """Take in the offsets up to `end`; they count as acknowledged until they are said to be something else."""
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
        """Go on elsewhere, with nothing open."""
        self.floor = self.end = offset
        self._clear()

    def settle(self) -> bool:
        """Move the floor past what is acknowledged; True if it moved."""
        state, low, high = self._arrays["state"], self.floor - self._base, self.end - self._base
        place, size = low, _FIRST_SCAN
        while place < high:
            chunk = state[place : min(place + size, high)] != MessageState.ACKNOWLEDGED
            found = int(chunk.argmax())
            if chunk[found]:
                place += found
                break
            place, size = place + len(chunk), min(2 * size, _LARGEST_SCAN)
        self.floor = place + self._base
        if self.floor == self.end:
            self._clear()
        return place > low

    def _clear(self) -> None:
        """Nothing is open: begin again at the start of small arrays, without those that are seldom needed."""
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
        """The rows of what lies in the window."""
        return expanded(clipped(ranges, self.floor, self.end)) - self._base

    def held_in(self, ranges: Ranges, consumer: int | None) -> Rows:
        """The delivered messages in these ranges; those of one consumer, or of all."""
        rows = self.rows_in(ranges)
        held = self._arrays["state"][rows] == MessageState.DELIVERED
        if consumer is not None:
            held &= self._consumers(rows) == consumer
        found: Rows = rows if held.all() else rows[held]
        return found

    def held_by(self, consumer: int) -> Rows:
        """All that a consumer has."""
        low, high = self.floor - self._base, self.end - self._base
        rows: Rows = np.flatnonzero(self._arrays["state"][low:high] == MessageState.DELIVERED) + low
        found: Rows = rows[self._consumers(rows) == consumer]
        return found

    def _consumers(self, rows: Rows) -> npt.NDArray[np.uint16]:
        """Who has these; there is no array as long as there was nobody but consumer 0."""
        array = self._arrays.get("consumer")
        found: npt.NDArray[np.uint16] = np.zeros(len(rows), np.uint16) if array is None else array[rows]
        return found

    def open_in(self, ranges: Ranges) -> Rows:
        """All in these ranges that is not acknowledged."""
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
        """Which of these rows can be delivered, to somebody who may have these slots."""
        mask: Mask = self._arrays["state"][rows] == MessageState.READY
        if allowed is not None:
            mask &= allowed[self._arrays["slot"][rows]]
        return mask

    def first_ready(self, start: int, end: int, allowed: Mask | None = None) -> int | None:
        """The first offset in `[start, end)` that can be delivered, to somebody who may have these slots."""
        place, high = max(start, self.floor) - self._base, min(end, self.end) - self._base
        state, slot, size = self._arrays["state"], self._arrays.get("slot"), _FIRST_SCAN
        while place < high:
            until = min(place + size, high)
            chunk = state[place:until] == MessageState.READY
            if allowed is not None and slot is not None:
                chunk &= allowed[slot[place:until]]
            found = int(chunk.argmax())
            if chunk[found]:
                return place + found + self._base
            place, size = until, min(2 * size, _LARGEST_SCAN)
        return None

    def slots(self, rows: Rows) -> npt.NDArray[np.uint16]:
        found: npt.NDArray[np.uint16] = self._arrays["slot"][rows]
        return found

    def redeliveries(self, rows: Rows) -> npt.NDArray[np.uint16] | None:
        """How often these were delivered before; None stands for never."""
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
        """Delivered messages are to come again: at once, or when they are due."""
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
        """What was delivered and is overdue, what was delayed and is due, and when to look again."""
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
        """Delayed messages are due."""
        self._arrays["state"][rows] = MessageState.READY

    # What is kept

    def acknowledged(self) -> Ranges:
        low, high = self.floor - self._base, self.end - self._base
        return ranges_where(self._arrays["state"][low:high] == MessageState.ACKNOWLEDGED, self.floor)

    def held_counts(self, consumers: int) -> list[int]:
        """How many messages each of so many consumers has."""
        rows = self.in_state(MessageState.DELIVERED)
        found: list[int] = np.bincount(self._consumers(rows), minlength=consumers).tolist()
        return found

    def pending(self) -> Pending:
        """The messages that were delivered before and are open, as runs of equal counts; a bounded number of runs."""
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
        """Ready messages that were delivered before: as `pending` described them."""
        self._add_array("redeliveries", np.uint16, 0)[rows] = min(redeliveries, _MOST)
        self._add_array("failures", np.uint16, 0)[rows] = min(failures, _MOST)
        if due_ms:
            self._arrays["state"][rows] = MessageState.DELAYED
            self._add_array("due", np.int64, NEVER_MS)[rows] = due_ms


_DEFAULTS = {"due": NEVER_MS}
