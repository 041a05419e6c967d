"""Whatever bytes come in, rows that say what protobuf's parser says come out, or a typed error."""

import os
import random
from typing import Any

import hypothesis.strategies as st
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from tests.otlp import as_bytes, grouped, requests
from tests.otlp_wire import unusual

from icestream.model.errors import InvalidMessageError
from icestream.telemetry import Signal, to_batch, to_request
from icestream.telemetry.schemas import REQUESTS

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))
EXAMPLES = 200 if SOAK else 20
MUTANTS_EACH = 20
SLOW_TO_MAKE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def check(signal: Signal, data: bytes) -> None:
    """The rows say what the parser says; what the parser refuses is refused."""
    try:
        parsed = REQUESTS[signal].FromString(data)
    except DecodeError:
        with pytest.raises(InvalidMessageError):
            to_batch(signal, data)
        return
    batch = to_batch(signal, data)
    batch.validate(full=True)
    made: Any = REQUESTS[signal].FromString(to_request(signal, batch))
    for message in (parsed, made):
        message.DiscardUnknownFields()
    assert as_bytes(made) == as_bytes(grouped(signal, parsed))


def mutated(data: bytes, source: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(source.randint(1, 3)):
        place = source.randrange(len(changed) + 1)
        kind = source.randrange(4)
        if kind == 0:
            changed[place : place + 1] = source.randbytes(1)
        elif kind == 1:
            changed[place:place] = source.randbytes(source.randint(1, 4))
        elif kind == 2:
            del changed[place : place + source.randint(1, 4)]
        else:
            del changed[place:]
    return bytes(changed)


@pytest.mark.parametrize("signal", Signal)
@settings(max_examples=EXAMPLES, suppress_health_check=SLOW_TO_MAKE)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_unusual_wire_forms_are_read_as_the_parser_reads_them(signal: Signal, data: st.DataObject, seed: int) -> None:
    request: Any = data.draw(requests(signal))
    check(signal, unusual(request.SerializeToString(), request.DESCRIPTOR, random.Random(seed)))


@pytest.mark.parametrize("signal", Signal)
@settings(max_examples=EXAMPLES, suppress_health_check=SLOW_TO_MAKE)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_mutated_requests_never_do_more_than_fail(signal: Signal, data: st.DataObject, seed: int) -> None:
    request: Any = data.draw(requests(signal))
    source = random.Random(seed)
    for _ in range(MUTANTS_EACH):
        check(signal, mutated(request.SerializeToString(), source))
