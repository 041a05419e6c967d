"""Which consumer gets which message: one class for each type of subscription, and the slots of keys.

Consumers are small numbers here. The same key always falls into the same slot; whole columns are hashed at a time. A
message without a key has no order to keep: it falls into a slot by its offset, so that such messages are spread evenly
over the consumers.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.model.enums import SubscriptionType
from icestream.model.messages import KEY
from icestream.subscription.progress import Offsets
from icestream.subscription.window import Mask

# Key slots

SLOTS = 4_096
Slots = npt.NDArray[np.uint16]
_Hashes = npt.NDArray[np.uint64]

_WEIGHTS = np.random.default_rng(0x1CE57).integers(0, 1 << 63, 1_024, np.uint64) | np.uint64(1)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)


def slots_of(batch: pa.RecordBatch, offsets: Offsets) -> Slots:
    keys = batch.column(batch.schema.get_field_index(KEY))
    spread = _mixed(offsets.astype(np.uint64))
    if keys.null_count == len(keys):
        hashes = spread
    else:
        hashes = _hashes(keys)
        if keys.null_count:
            hashes = np.where(keys.is_null().to_numpy(zero_copy_only=False), spread, hashes)
    return (hashes % np.uint64(SLOTS)).astype(np.uint16)


def _hashes(keys: pa.Array) -> _Hashes:
    if pa.types.is_integer(keys.type):
        whole: Any = pc.fill_null(keys, 0).to_numpy(zero_copy_only=False)
        return _mixed(whole.astype(np.int64).view(np.uint64))
    if not pa.types.is_large_binary(keys.type):
        if not (pa.types.is_binary(keys.type) or pa.types.is_string(keys.type)):
            keys = keys.cast(pa.string())
        keys = keys.cast(pa.large_binary())
    _, ends, data = keys.buffers()
    bounds = np.frombuffer(ends, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    first, last = int(bounds[0]), int(bounds[-1])
    lengths = np.diff(bounds)
    text = np.frombuffer(data, np.uint8)[first:last] if data is not None and last > first else np.empty(0, np.uint8)
    # The sum of each byte times a weight of its index in the key. Sums wrap around; their differences stay right.
    index = (np.arange(last - first) - np.repeat(bounds[:-1] - first, lengths)) % len(_WEIGHTS)
    sums = np.concatenate(
        (np.zeros(1, np.uint64), np.cumsum((text.astype(np.uint64) + np.uint64(1)) * _WEIGHTS[index]))
    )
    return _mixed(sums[bounds[1:] - first] - sums[bounds[:-1] - first] + lengths.astype(np.uint64))


def _mixed(values: _Hashes) -> _Hashes:
    """Spread near values far apart (the finaliser of SplitMix64)."""
    values = (values ^ (values >> _SHIFT_1)) * _MIX_1
    values = (values ^ (values >> _SHIFT_2)) * _MIX_2
    return values ^ (values >> _SHIFT_3)


# Modes


class Mode:
    """The default: every consumer may get every message."""

    by_key = False
    """Whether messages are divided by their key's slot."""

    def __init__(self) -> None:
        self.consumers: list[int] = []
        """In the order in which they connected."""

    def admits_one_more(self) -> bool:
        return True

    def joined(self, consumer: int) -> None:
        self.consumers.append(consumer)

    def left(self, consumer: int) -> None:
        """Remove a consumer that holds no message any more."""
        self.consumers.remove(consumer)

    def is_active(self, consumer: int) -> bool:
        return consumer in self.consumers

    def allowed(self, consumer: int) -> Mask | None:
        """Return the slots whose messages a consumer may get now; None stands for all."""
        del consumer
        return None

    def share(self, available: int) -> int:
        """Return how many of the buffered messages one consumer may take at once."""
        return available

    def delivered(self, slots: Slots) -> None:
        """Count messages as delivered; one slot for each."""

    def forget_deliveries(self) -> None:
        """Forget all deliveries: the subscription goes on from another position."""

    def settled(self, slots: Slots) -> bool:
        """Count messages as no longer delivered; return whether a slot got another owner by that."""
        del slots
        return False


_NOBODY = -1


class KeySharedMode(Mode):
    """The messages of a key go to one consumer in order, while consumers come and go.

    Keys fall into slots, and each slot has an owner. When consumers change, as few slots as possible move. A slot whose
    messages are with its owner stays there, and gets no more, until all of them are acknowledged or come again. So no
    message of a key is ever with one consumer while an earlier one is with another.
    """

    by_key = True

    def __init__(self) -> None:
        super().__init__()
        self._owner: npt.NDArray[np.int32] = np.full(SLOTS, _NOBODY, np.int32)
        self._next: npt.NDArray[np.int32] = np.full(SLOTS, _NOBODY, np.int32)
        """The consumer that gets the slot once its owner holds none of its messages."""
        self._held: npt.NDArray[np.int64] = np.zeros(SLOTS, np.int64)
        """How many messages of the slot its owner holds."""

    def joined(self, consumer: int) -> None:
        super().joined(consumer)
        fair, rest = divmod(SLOTS, len(self.consumers))
        wanted, ceiling = fair, fair + (1 if rest else 0)
        free = np.flatnonzero(self._next == _NOBODY)
        self._next[free[:wanted]] = consumer
        wanted -= min(wanted, len(free))
        for level in (ceiling, fair):  # first from consumers above their share, then the remainder
            for other in self.consumers[:-1]:
                mine = np.flatnonzero(self._next == other)
                given = mine[: min(wanted, max(0, len(mine) - level))]
                self._next[given] = consumer
                wanted -= len(given)
        self._move()

    def left(self, consumer: int) -> None:
        super().left(consumer)
        free = np.flatnonzero(self._next == consumer)
        self._next[free] = _NOBODY
        if self.consumers:
            loads = np.bincount(self._next[self._next != _NOBODY], minlength=max(self.consumers) + 1)
            for level in (SLOTS // len(self.consumers), SLOTS // len(self.consumers) + 1):
                for other in self.consumers:
                    count = min(len(free), max(0, level - int(loads[other])))
                    self._next[free[:count]] = other
                    loads[other] += count
                    free = free[count:]
        self._owner[self._owner == consumer] = _NOBODY
        self._move()

    def _move(self) -> bool:
        """Give slots to their next owner where the owner holds no message; return whether any moved."""
        moving = (self._owner != self._next) & ((self._held == 0) | (self._owner == _NOBODY))
        self._owner[moving] = self._next[moving]
        return bool(moving.any())

    def allowed(self, consumer: int) -> Mask | None:
        mine: Mask = (self._owner == consumer) & (self._next == consumer)
        return mine

    def delivered(self, slots: Slots) -> None:
        self._held += np.bincount(slots, minlength=SLOTS)

    def forget_deliveries(self) -> None:
        self._held.fill(0)
        self._move()

    def settled(self, slots: Slots) -> bool:
        self._held -= np.bincount(slots, minlength=SLOTS)
        return self._move()


class SharedMode(Mode):
    """Messages go to the consumers in turns: the buffered ones are divided evenly among those that are connected.

    A consumer that asks again before the others gets more. Nobody waits for a slow consumer.
    """

    def share(self, available: int) -> int:
        return -(-available // max(1, len(self.consumers)))


class ExclusiveMode(Mode):
    """One consumer gets all messages. No other one may connect."""

    def admits_one_more(self) -> bool:
        return not self.consumers


class FailoverMode(Mode):
    """The consumer that came first gets all messages. The others wait for its end."""

    def is_active(self, consumer: int) -> bool:
        return self.consumers[:1] == [consumer]


_MODES: dict[SubscriptionType, type[Mode]] = {
    SubscriptionType.EXCLUSIVE: ExclusiveMode,
    SubscriptionType.FAILOVER: FailoverMode,
    SubscriptionType.SHARED: SharedMode,
    SubscriptionType.KEY_SHARED: KeySharedMode,
}


def make_mode(kind: SubscriptionType) -> Mode:
    return _MODES[kind]()
