"""Requests to rows."""

from collections.abc import Callable

import pyarrow as pa

from icestream.telemetry.logs import log_columns
from icestream.telemetry.metrics import point_columns
from icestream.telemetry.options import DEFAULTS, Options, check_limit
from icestream.telemetry.origin import Columns
from icestream.telemetry.schemas import topic_schema
from icestream.telemetry.signals import Signal
from icestream.telemetry.traces import span_columns
from icestream.telemetry.wire import decode_request

_COLUMNS: dict[Signal, Callable[[pa.StructArray, Options], Columns]] = {
    Signal.TRACES: span_columns,
    Signal.LOGS: log_columns,
    Signal.METRICS: point_columns,
}


def to_batch(signal: Signal, request: bytes, options: Options = DEFAULTS) -> pa.RecordBatch:
    """The rows of a serialized request: one a span, log record or data point, in the request's order."""
    check_limit("bytes in the request", len(request), options.max_request_bytes)
    columns = _COLUMNS[signal](decode_request(signal, request), options)
    schema = topic_schema(signal, options)
    batch = pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)
    check_limit("bytes in the rows of the request", batch.nbytes, options.max_batch_bytes)
    return batch
