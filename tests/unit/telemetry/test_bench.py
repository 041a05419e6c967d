import random

import pytest

from icestream.telemetry import Signal
from icestream_bench.otlp_convert import logs_request, measure, traces_request


@pytest.mark.parametrize(("signal", "make"), [(Signal.TRACES, traces_request), (Signal.LOGS, logs_request)])
def test_the_measurement_of_conversions_says_what_it_measured(signal: Signal, make: type) -> None:
    found = measure(signal, make(random.Random(1), items=8), rounds=1)
    assert (found.signal, found.items) == (signal, 8)
    assert 0 < found.median_per_s <= found.best_per_s
    assert found.row_bytes > found.request_bytes > 0
