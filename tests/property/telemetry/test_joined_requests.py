"""Whatever comes at the same time, each request fares as it does alone: the same answer, and the same rows or none."""

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from tests.otlp import requests
from tests.otlp_requests import serialized
from tests.otlp_wire import field, unusual, varint
from tests.property.telemetry.test_hostile_requests import mutated

from icestream.model.errors import InvalidMessageError
from icestream.telemetry import Signal, to_batch
from icestream.telemetry.combine import Combiner, TelemetryTarget
from icestream.telemetry.schemas import REQUESTS
from icestream.telemetry.wire import is_whole

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))
EXAMPLES = 300 if SOAK else 20
SLOW_TO_MAKE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
MAX_JOINED_BYTES = 1 << 20


def stored_together(signal: Signal, sent: Sequence[bytes]) -> tuple[list[bool], list[pa.RecordBatch]]:
    """Which of the requests that wait together are accepted, and what is stored."""
    batches: list[pa.RecordBatch] = []
    combiner = Combiner(to_batch, lambda _target, rows: batches.append(rows), MAX_JOINED_BYTES)
    target = TelemetryTarget("acme", None, signal)

    def is_accepted(request: bytes) -> bool:
        try:
            combiner.store(target, request)
        except InvalidMessageError:
            return False
        return True

    with ThreadPoolExecutor(len(sent)) as pool:
        answers = []
        with combiner.converting:
            for number, request in enumerate(sent, 1):
                answers.append(pool.submit(is_accepted, request))
                while len(combiner._waiting.get(target, ())) < number:
                    time.sleep(0.0001)
        return [answer.result() for answer in answers], batches


def alone(signal: Signal, request: bytes) -> pa.RecordBatch | None:
    try:
        return to_batch(signal, request)
    except InvalidMessageError:
        return None


def rows_of(batches: Sequence[pa.RecordBatch]) -> Counter[str]:
    return Counter(repr(row) for batch in batches for row in batch.to_pylist())


def check(signal: Signal, sent: Sequence[bytes]) -> list[pa.RecordBatch]:
    expected = [alone(signal, request) for request in sent]
    accepted, batches = stored_together(signal, sent)
    assert accepted == [batch is not None for batch in expected]
    assert rows_of(batches) == rows_of([batch for batch in expected if batch is not None])
    return batches


@pytest.mark.parametrize("signal", Signal)
@settings(max_examples=EXAMPLES, suppress_health_check=SLOW_TO_MAKE, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_damaged_requests_change_nothing_for_sound_ones(signal: Signal, data: st.DataObject, seed: int) -> None:
    source = random.Random(seed)
    sent: list[bytes] = [serialized(signal, 2, name="sound")]
    with_damaged = source.random() < 0.5  # where one is refused for itself all are tried alone, which hides the rest
    for _ in range(3):
        request = data.draw(requests(signal))
        request.MergeFrom(REQUESTS[signal].FromString(serialized(signal, name="more")))
        sound: bytes = request.SerializeToString()
        odd = unusual(sound, request.DESCRIPTOR, source)
        cut = sound[: source.randrange(len(sound))]
        sent += [source.choice([odd, cut, mutated(sound, source)]) if with_damaged else sound]
    source.shuffle(sent)
    place = source.randrange(len(sent))
    next_ones = sent[place : place + source.randint(1, 2)]
    sent[place:place] = [source.choice([b"", sent[0]]) + b"\x0a" + varint(sum(map(len, next_ones)))]
    check(signal, sent)


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_request_that_is_cut_off_takes_nothing_from_the_next_one(signal: Signal, place: int) -> None:
    good = serialized(signal, 3, name="good")
    for swallowed in range(len(good) + 2):
        sent = [good, good]
        sent.insert(place, b"\x0a" + varint(swallowed))
        batches = check(signal, sent)
        assert sum(batch.num_rows for batch in batches) == 6


@pytest.mark.parametrize("signal", Signal)
def test_what_exporters_send_is_joined(signal: Signal) -> None:
    batches = check(signal, [serialized(signal, number) for number in range(1, 6)])
    assert [batch.num_rows for batch in batches] == [15]


def test_requests_of_very_many_resources_are_not_looked_through() -> None:
    empty = field(1, 2, b"")
    assert is_whole(b"")
    assert is_whole(empty * 1000)
    assert not is_whole(empty * 1001)


@given(seed=st.integers(0, 2**32))
def test_whole_is_only_what_the_parser_ends_with_too(seed: int) -> None:
    source = random.Random(seed)
    made = [field(1, 2, field(3, 2, b"x" * source.randrange(200))) for _ in range(source.randrange(4))]
    data = b"".join(made)
    assert is_whole(data)
    for end in range(len(data)):
        whole = is_whole(data[:end])
        assert whole == (data[:end] in {b"".join(made[:count]) for count in range(len(made))})
        if not whole:
            with pytest.raises(DecodeError):
                REQUESTS[Signal.LOGS].FromString(data[:end])
