"""Requests that wait together, with the real log: each has its own answer, and what is durable is counted once."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.otlp_requests import serialized
from tests.otlp_wire import varint

from icestream.config import ServerSettings, Settings
from icestream.model.errors import InvalidMessageError, TooLargeError
from icestream.storage import IcebergStorage
from icestream.telemetry import Signal
from icestream.telemetry.ingest import Ingest
from icestream.telemetry.tenants import TelemetrySender

MAX_MESSAGE_BYTES = 64 * 1024
GOOD = serialized(Signal.LOGS, 3, name="good")


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (serialized(Signal.LOGS, name="x" * 2 * MAX_MESSAGE_BYTES), TooLargeError),
        (b"\x0a" + varint(len(GOOD)), InvalidMessageError),
        (b"\x0a\x02\x12\x7f", InvalidMessageError),
    ],
    ids=["a row beyond the limit", "cut off", "broken inside"],
)
def test_one_that_is_refused_concerns_no_other(tmp_path: Path, bad: bytes, error: type[Exception], place: int) -> None:
    settings = Settings(data_dir=tmp_path, server=ServerSettings(max_message_bytes=MAX_MESSAGE_BYTES))
    with IcebergStorage(settings) as storage, ThreadPoolExecutor(3) as pool:
        ingest = Ingest(storage)
        sent = [GOOD, GOOD]
        sent.insert(place, bad)
        answers = []
        with ingest._combiner.converting:
            for number, request in enumerate(sent, 1):
                answers.append(pool.submit(ingest.store, Signal.LOGS, TelemetrySender("acme"), request))
                while sum(map(len, ingest._combiner._waiting.values())) < number:
                    time.sleep(0.001)
        refusal = answers.pop(place).exception()
        assert isinstance(refusal, error)
        stored = [answer.result() for answer in answers]
        assert [one.rows for one in stored] == [3, 3]
        assert all(one.nbytes > 0 for one in stored)
        assert storage.topics.get("acme/logs").log.durable_end == 6
        counted = ingest.statistics.figures()["acme"]["logs"]
        assert (counted["requests"], counted["rows"], counted["bytes"]) == (2, 6, 2 * len(GOOD))
