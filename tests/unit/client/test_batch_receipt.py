"""A receipt of several batches: one timeout for all."""

from collections.abc import Callable

import pytest

from icestream.client import producer
from icestream.client.producer import BatchReceipt
from icestream.model.errors import DeadlineError

NEEDED_S = 3.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Part:
    """A batch whose acknowledgement takes three seconds."""

    done = False
    error = None
    count = 1
    base_offset = 5
    seen = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wait(self, timeout: float | None) -> bool:
        assert timeout is not None
        self._clock.now += min(NEEDED_S, timeout)
        return timeout >= NEEDED_S


@pytest.mark.parametrize("call", [BatchReceipt.result, BatchReceipt.exception])
def test_the_timeout_is_for_all_parts_together(
    call: Callable[[BatchReceipt, float], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(producer, "time", clock)
    receipt = BatchReceipt([Part(clock) for _ in range(3)], lambda *_: None)  # type: ignore[misc, arg-type]
    call(receipt, 9.0)
    assert clock.now == 1009.0
    with pytest.raises(DeadlineError, match=r"within 8\.0 s"):
        call(receipt, 8.0)
    assert clock.now == 1017.0
