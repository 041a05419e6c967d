"""How fast OTLP requests become rows on one core: `python -m icestream_bench.otlp_convert`.

The floor is protobuf's own parser on the same bytes. Times are the CPU time of this process, so that other programs
affect them little. The report has the best and the median of many rounds.
"""

import json
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import process_time
from typing import Any

from icestream.telemetry import REQUESTS, Signal, to_batch

ITEMS = 512
SPAN_ATTRIBUTES = 10
LOG_ATTRIBUTES = 6
RESOURCE_ATTRIBUTES = 8
EVENT_EVERY = 10
START_NANOS = 1_700_000_000_000_000_000
ROUNDS = 50
REQUESTS_A_ROUND = 5


@dataclass(frozen=True)
class Conversion:
    """Items a second of one core."""

    signal: str
    items: int
    request_bytes: int
    row_bytes: int
    best_per_s: int
    median_per_s: int
    parse_only_best_per_s: int


def traces_request(source: random.Random, items: int = ITEMS) -> Any:
    """Return a request with spans of one service, every tenth with an event."""
    request = REQUESTS[Signal.TRACES]()
    group = request.resource_spans.add()
    _describe(group.resource, source)
    scope = group.scope_spans.add()
    scope.scope.name, scope.scope.version = "io.opentelemetry.http", "1.2.3"
    for number in range(items):
        start = START_NANOS + number * 1000
        span = scope.spans.add(
            trace_id=source.randbytes(16),
            span_id=source.randbytes(8),
            parent_span_id=source.randbytes(8),
            name=f"GET /api/v1/items/{number % 20}",
            kind=2,
            start_time_unix_nano=start,
            end_time_unix_nano=start + source.randrange(10**9),
            flags=1,
        )
        span.status.code = 1
        _attributes(span.attributes, SPAN_ATTRIBUTES, source)
        if number % EVENT_EVERY == 0:
            _attributes(span.events.add(name="exception", time_unix_nano=start).attributes, 3, source)
    return request


def logs_request(source: random.Random, items: int = ITEMS) -> Any:
    """Return a request with log records of one service, with text bodies."""
    request = REQUESTS[Signal.LOGS]()
    group = request.resource_logs.add()
    _describe(group.resource, source)
    scope = group.scope_logs.add()
    scope.scope.name = "io.opentelemetry.logs"
    for number in range(items):
        time = START_NANOS + number * 1000
        record = scope.log_records.add(
            time_unix_nano=time,
            observed_time_unix_nano=time + 5,
            severity_number=9,
            severity_text="INFO",
            trace_id=source.randbytes(16),
            span_id=source.randbytes(8),
        )
        record.body.string_value = f"request {number} took {source.randrange(1000)} ms and all was well with it"
        _attributes(record.attributes, LOG_ATTRIBUTES, source)
    return request


def _describe(resource: Any, source: random.Random) -> None:
    resource.attributes.add(key="service.name").value.string_value = "checkout"
    _attributes(resource.attributes, RESOURCE_ATTRIBUTES, source)


def _attributes(home: Any, count: int, source: random.Random) -> None:
    """Add attributes as instrumentations send them: mostly text, some numbers, a bool."""
    for number in range(count):
        value = home.add(key=f"http.request.attribute{number}").value
        if number % 5 == 0:
            value.int_value = source.randrange(100_000)
        elif number == 6:  # noqa: PLR2004 - any one of them
            value.double_value = source.random()
        elif number == 7:  # noqa: PLR2004 - same
            value.bool_value = True
        else:
            value.string_value = f"value-{source.randrange(10_000)}-of-something"


def measure(signal: Signal, request: Any, rounds: int = ROUNDS) -> Conversion:
    data: bytes = request.SerializeToString()
    batch = to_batch(signal, data)
    parse = _per_second(lambda: REQUESTS[signal].FromString(data), batch.num_rows, rounds)
    convert = _per_second(lambda: to_batch(signal, data), batch.num_rows, rounds)
    return Conversion(
        signal=signal,
        items=batch.num_rows,
        request_bytes=len(data),
        row_bytes=batch.nbytes,
        best_per_s=max(convert),
        median_per_s=int(median(convert)),
        parse_only_best_per_s=max(parse),
    )


def _per_second(call: Callable[[], Any], items: int, rounds: int) -> list[int]:
    found = []
    for _ in range(rounds):
        start = process_time()
        for _ in range(REQUESTS_A_ROUND):
            call()
        found.append(int(items * REQUESTS_A_ROUND / max(process_time() - start, 1e-9)))
    return found


def main() -> None:
    source = random.Random(1)
    found = [measure(Signal.TRACES, traces_request(source)), measure(Signal.LOGS, logs_request(source))]
    sys.stdout.write(json.dumps([asdict(conversion) for conversion in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
