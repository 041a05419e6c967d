"""Telemetry: OpenTelemetry's signals as rows of topics, and back.

`to_batch` turns a serialized export request into an Arrow batch with the columns of `topic_schema`: one row a span, log
record or data point, by column and without a Python object a row. `to_request` turns rows into a request again.
`json_to_request` reads OTLP's JSON form. All three are pure functions.

Guarantees:

- No field of an item is lost: a request that is made from its rows again equals the original, up to the grouping that
  `to_request` describes.
- Any input gives a batch or a typed error: `InvalidMessageError` for bytes that are not OTLP, `TooLargeError` beyond
  the limits in `ConversionOptions`.
- The number of a request's rows is bounded before they are made.

    batch = to_batch(Signal.TRACES, request)      # pyarrow.RecordBatch with the columns of topic_schema(Signal.TRACES)

Modules: `ingest` brings requests into topics; `tenants` says which tenant a request belongs to and how much each may
send; `combine` joins requests that wait together; `topics` finds or creates topics; `schemas` has the signals, options
and columns; `wire`, `attributes`, `arrays` and `convert` turn requests into rows, `encode` turns rows into requests.
"""

from icestream.telemetry.arrays import timestamps
from icestream.telemetry.convert import to_batch
from icestream.telemetry.encode import to_request
from icestream.telemetry.schemas import (
    REQUESTS,
    SERVICE_NAME,
    AttributeOwner,
    ConversionOptions,
    Promoted,
    Signal,
    topic_schema,
)
from icestream.telemetry.wire import json_to_request

__all__ = [
    "REQUESTS",
    "SERVICE_NAME",
    "AttributeOwner",
    "ConversionOptions",
    "Promoted",
    "Signal",
    "json_to_request",
    "timestamps",
    "to_batch",
    "to_request",
    "topic_schema",
]
