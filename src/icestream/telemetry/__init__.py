"""OpenTelemetry's signals as rows of topics, and back.

`to_batch` turns a serialized export request into an Arrow batch with the columns of `topic_schema`: one row a span, log
record or data point, by column and without objects a row. `to_request` turns such rows into a request again.
`json_to_request` reads OTLP's JSON form. All three are pure functions.

`ingest` brings requests into topics: `tenants` says whose they are, `limits` how much each may send, `combine` joins
those that wait together, `topics` finds or makes where they go.

Guarantees:

- Nothing that a request says about an item is lost: a request made again from its rows equals the one that came, up to
  the grouping that `to_request` describes.
- Whatever bytes come in, the outcome is a batch or a typed error: `InvalidMessageError` for what is no OTLP,
  `TooLargeError` for what is beyond the limits in `Options`.
- The rows of a request are bounded before they are made.
"""

from icestream.telemetry.convert import to_batch
from icestream.telemetry.encode import to_request
from icestream.telemetry.schemas import AttributeOwner, ConversionOptions, Promoted, Signal, topic_schema
from icestream.telemetry.wire import json_to_request

__all__ = [
    "AttributeOwner",
    "ConversionOptions",
    "Promoted",
    "Signal",
    "json_to_request",
    "to_batch",
    "to_request",
    "topic_schema",
]
