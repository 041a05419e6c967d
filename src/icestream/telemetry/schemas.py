"""The three signals, the options of a conversion, and the columns of the signals' topics.

A table holds every type here as it is: rows move from the log into files without a cast. Every nested field may be
null, as in the table. `docs/telemetry-mapping.md` explains each column.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from icestream.model.errors import InvalidRequestError, TooLargeError
from icestream.model.units import MIB


class Signal(StrEnum):
    """A kind of telemetry. The value is also the name of the tenant's topic."""

    TRACES = "traces"
    LOGS = "logs"
    METRICS = "metrics"


REQUESTS: dict[Signal, Any] = {
    Signal.TRACES: ExportTraceServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
    Signal.METRICS: ExportMetricsServiceRequest,
}
"""The message that an exporter sends."""


def new_request(signal: Signal) -> Message:
    made: Message = REQUESTS[signal]()
    return made


class AttributeOwner(StrEnum):
    """Which attributes a promoted one is taken from."""

    RESOURCE = "resource"
    SCOPE = "scope"
    ITEM = "item"
    """The attributes of the span, log record or data point itself."""


@dataclass(frozen=True)
class Promoted:
    """An attribute that has its own column, in addition to its entry in the map."""

    key: str
    column: str
    source: AttributeOwner = AttributeOwner.ITEM


SERVICE_NAME = Promoted("service.name", "service_name", AttributeOwner.RESOURCE)
"""Always promoted."""


@dataclass(frozen=True)
class ConversionOptions:
    promoted: tuple[Promoted, ...] = ()
    """Further columns, after all others. A topic that has some may get more."""
    max_request_bytes: int = 16 * MIB
    """A parsed request is in memory for a moment. The worst, all empty spans, takes 90 times its bytes."""
    max_rows: int = 1_000_000
    max_batch_bytes: int = 256 * MIB
    """Bytes of the rows of one request. Each row repeats its resource, so a small request can make many bytes."""
    max_depth: int = 24
    """How deep arrays and maps may be nested in one attribute value. The protobuf parser fails near 30."""


DEFAULTS = ConversionOptions()


def check_limit(what: str, found: int, limit: int) -> None:
    if found > limit:
        raise TooLargeError(
            f"{found} {what}, the limit is {limit}", operation="decode telemetry", remedy="send smaller requests"
        )


# Columns

TIME = pa.timestamp("us", tz="UTC")
ATTRIBUTES = pa.map_(pa.string(), pa.string())


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


INTS = _list(pa.int64())
DOUBLES = _list(pa.float64())
STRINGS = _list(pa.string())
EXACT = _list(pa.binary())
"""Serialized `KeyValue` messages."""


def _attributes(name: str = "attributes") -> list[pa.Field]:
    """Return the three columns of a set of attributes, as `icestream.telemetry.attributes` makes them."""
    return [
        pa.field(name, ATTRIBUTES),
        pa.field(f"{name}_types", pa.binary()),
        pa.field(f"{name}_otlp", EXACT),
    ]


ENTITY_REFS = _list(
    pa.struct(
        [
            pa.field("schema_url", pa.string()),
            pa.field("type", pa.string()),
            pa.field("id_keys", STRINGS),
            pa.field("description_keys", STRINGS),
        ]
    )
)
RESOURCE = pa.struct(
    [*_attributes(), pa.field("dropped_attributes_count", pa.int64()), pa.field("entity_refs", ENTITY_REFS)]
)
SCOPE = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("version", pa.string()),
        *_attributes(),
        pa.field("dropped_attributes_count", pa.int64()),
    ]
)
EVENT = pa.struct(
    [
        pa.field("time_unix_nano", pa.int64()),
        pa.field("name", pa.string()),
        *_attributes(),
        pa.field("dropped_attributes_count", pa.int64()),
    ]
)
LINK = pa.struct(
    [
        pa.field("trace_id", pa.binary()),
        pa.field("span_id", pa.binary()),
        pa.field("trace_state", pa.string()),
        pa.field("flags", pa.int64()),
        *_attributes(),
        pa.field("dropped_attributes_count", pa.int64()),
    ]
)
EXEMPLAR = pa.struct(
    [
        pa.field("time_unix_nano", pa.int64()),
        pa.field("value_int", pa.int64()),
        pa.field("value_double", pa.float64()),
        pa.field("trace_id", pa.binary()),
        pa.field("span_id", pa.binary()),
        *_attributes("filtered_attributes"),
    ]
)
BUCKETS = pa.struct([pa.field("offset", pa.int32()), pa.field("bucket_counts", INTS)])
QUANTILE = pa.struct([pa.field("quantile", pa.float64()), pa.field("value", pa.float64())])

_ORIGIN = [
    pa.field("resource", RESOURCE),
    pa.field("resource_schema_url", pa.string(), nullable=False),
    pa.field("scope", SCOPE),
    pa.field("scope_schema_url", pa.string(), nullable=False),
]
"""The resource and scope of a row: the same columns in all three topics."""

_TRACES = [
    pa.field("time", TIME),
    pa.field(SERVICE_NAME.column, pa.string()),
    pa.field("trace_id", pa.binary()),
    pa.field("span_id", pa.binary()),
    pa.field("parent_span_id", pa.binary()),
    pa.field("trace_state", pa.string(), nullable=False),
    pa.field("flags", pa.int64(), nullable=False),
    pa.field("name", pa.string(), nullable=False),
    pa.field("kind", pa.int32(), nullable=False),
    pa.field("start_time_unix_nano", pa.int64(), nullable=False),
    pa.field("end_time_unix_nano", pa.int64(), nullable=False),
    pa.field("status_code", pa.int32()),
    pa.field("status_message", pa.string()),
    *_attributes(),
    pa.field("dropped_attributes_count", pa.int64(), nullable=False),
    pa.field("events", _list(EVENT)),
    pa.field("dropped_events_count", pa.int64(), nullable=False),
    pa.field("links", _list(LINK)),
    pa.field("dropped_links_count", pa.int64(), nullable=False),
    *_ORIGIN,
]
_LOGS = [
    pa.field("time", TIME),
    pa.field(SERVICE_NAME.column, pa.string()),
    pa.field("time_unix_nano", pa.int64(), nullable=False),
    pa.field("observed_time_unix_nano", pa.int64(), nullable=False),
    pa.field("severity_number", pa.int32(), nullable=False),
    pa.field("severity_text", pa.string(), nullable=False),
    pa.field("body", pa.string()),
    pa.field("body_type", pa.int32()),
    pa.field("body_otlp", pa.binary()),
    pa.field("event_name", pa.string(), nullable=False),
    pa.field("trace_id", pa.binary()),
    pa.field("span_id", pa.binary()),
    pa.field("flags", pa.int64(), nullable=False),
    *_attributes(),
    pa.field("dropped_attributes_count", pa.int64(), nullable=False),
    *_ORIGIN,
]
_METRICS = [
    pa.field("time", TIME),
    pa.field(SERVICE_NAME.column, pa.string()),
    pa.field("name", pa.string(), nullable=False),
    pa.field("type", pa.string(), nullable=False),
    pa.field("description", pa.string(), nullable=False),
    pa.field("unit", pa.string(), nullable=False),
    pa.field("aggregation_temporality", pa.int32()),
    pa.field("is_monotonic", pa.bool_()),
    *_attributes("metadata"),
    pa.field("start_time_unix_nano", pa.int64(), nullable=False),
    pa.field("time_unix_nano", pa.int64(), nullable=False),
    pa.field("flags", pa.int64(), nullable=False),
    *_attributes(),
    pa.field("value_int", pa.int64()),
    pa.field("value_double", pa.float64()),
    pa.field("count", pa.int64()),
    pa.field("sum", pa.float64()),
    pa.field("min", pa.float64()),
    pa.field("max", pa.float64()),
    pa.field("bucket_counts", INTS),
    pa.field("explicit_bounds", DOUBLES),
    pa.field("scale", pa.int32()),
    pa.field("zero_count", pa.int64()),
    pa.field("zero_threshold", pa.float64()),
    pa.field("positive", BUCKETS),
    pa.field("negative", BUCKETS),
    pa.field("quantile_values", _list(QUANTILE)),
    pa.field("exemplars", _list(EXEMPLAR)),
    *_ORIGIN,
]
BASE = {Signal.TRACES: pa.schema(_TRACES), Signal.LOGS: pa.schema(_LOGS), Signal.METRICS: pa.schema(_METRICS)}


def topic_schema(signal: Signal | str, options: ConversionOptions = DEFAULTS) -> pa.Schema:
    """Return the columns of a signal's topic, with promoted ones last."""
    base = BASE[_known(signal)]
    taken = {name.lower() for name in base.names}
    for promoted in options.promoted:
        if promoted.column.lower() in taken:
            raise InvalidRequestError(
                f"attribute {promoted.key!r} cannot have the column {promoted.column!r}: that name is taken",
                operation="promote attributes",
                remedy="give it another column name",
            )
        taken.add(promoted.column.lower())
    if not options.promoted:
        return base
    return pa.schema([*base, *(pa.field(promoted.column, pa.string()) for promoted in options.promoted)])


def _known(signal: Signal | str) -> Signal:
    try:
        return Signal(signal)
    except ValueError as error:
        raise InvalidRequestError(
            f"{signal!r} is no signal of telemetry", operation="topic schema", remedy=f"use {', '.join(Signal)}"
        ) from error
