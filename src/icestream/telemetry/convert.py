"""Turns requests into rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from icestream.telemetry.arrays import Ints, element_bytes, null_if_empty, owners_of, relist, timestamps, valid
from icestream.telemetry.attributes import attribute_columns, named, texts_of
from icestream.telemetry.schemas import (
    BUCKETS,
    DEFAULTS,
    DOUBLES,
    ENTITY_REFS,
    EVENT,
    EXEMPLAR,
    INTS,
    LINK,
    QUANTILE,
    RESOURCE,
    SCOPE,
    SERVICE_NAME,
    AttributeOwner,
    ConversionOptions,
    Signal,
    check_limit,
    topic_schema,
)
from icestream.telemetry.wire import decode_request, decode_values

# Resource and scope, repeated for each of their rows


Columns = dict[str, pa.Array]
_TILES = 8


@dataclass(frozen=True)
class RequestItems:
    """A request's items (spans, log records or metrics), with their resources and scopes."""

    resources: pa.StructArray
    scopes: pa.StructArray
    items: pa.StructArray
    resource_of_scope: Ints
    scope_of_item: Ints

    @property
    def attributes(self) -> list[pa.ListArray]:
        """Return the serialized attributes of resources and scopes. `columns` takes them decoded."""
        return [part.field("attributes") for part in (self.resources.field("resource"), self.scopes.field("scope"))]

    def columns(
        self, scope_of_row: Ints, of_resources: list[pa.Array], of_scopes: list[pa.Array], options: ConversionOptions
    ) -> Columns:
        """Return resource and scope columns, and promoted ones, for rows that belong to these scopes."""
        resources = _resource_columns(self.resources, of_resources, options)
        scopes = _scope_columns(self.scopes, of_scopes, options)
        resource_of_row = self.resource_of_scope[scope_of_row]
        return repeat(resources, resource_of_row, options) | repeat(scopes, scope_of_row, options)


def walk(resources: pa.StructArray, options: ConversionOptions) -> RequestItems:
    """Find the items. `resources` is the result of `decode_request`: resource, list of scopes, schema URL."""
    scope_lists = resources.field(1)
    scopes = scope_lists.values
    item_lists = scopes.field(1)
    check_limit("items in the request", len(item_lists.values), options.max_rows)
    return RequestItems(resources, scopes, item_lists.values, owners_of(scope_lists), owners_of(item_lists))


def _resource_columns(resources: pa.StructArray, attributes: list[pa.Array], options: ConversionOptions) -> Columns:
    resource = resources.field("resource")
    parts = [*attributes, resource.field("dropped_attributes_count"), resource.field("entity_refs").cast(ENTITY_REFS)]
    return {
        "resource": _struct(parts, RESOURCE, resource),
        "resource_schema_url": resources.field("schema_url"),
        SERVICE_NAME.column: _look_up(attributes[0], SERVICE_NAME.key),
        **promoted_columns(attributes[0], AttributeOwner.RESOURCE, options),
    }


def _scope_columns(scopes: pa.StructArray, attributes: list[pa.Array], options: ConversionOptions) -> Columns:
    scope = scopes.field("scope")
    parts = [scope.field("name"), scope.field("version"), *attributes, scope.field("dropped_attributes_count")]
    return {
        "scope": _struct(parts, SCOPE, scope),
        "scope_schema_url": scopes.field("schema_url"),
        **promoted_columns(attributes[0], AttributeOwner.SCOPE, options),
    }


def _struct(parts: list[pa.Array], kind: pa.DataType, presence: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=presence.is_null())


def _look_up(attributes: pa.MapArray, key: str) -> pa.Array:
    return pc.map_lookup(attributes, key, "first")


def promoted_columns(attributes: pa.MapArray, source: AttributeOwner, options: ConversionOptions) -> Columns:
    wanted = [promoted for promoted in options.promoted if promoted.source is source]
    return {promoted.column: _look_up(attributes, promoted.key) for promoted in wanted}


def repeat(columns: Columns, owner_of_row: Ints, options: ConversionOptions) -> Columns:
    """Return each column's value for each row. Raise if all would be more bytes than allowed."""
    _check_size(columns, owner_of_row, options)
    if len(owner_of_row) and owner_of_row[0] == owner_of_row[-1]:  # rows are in the order of their owners
        return {name: _tile(column.slice(owner_of_row[0], 1), len(owner_of_row)) for name, column in columns.items()}
    indices = pa.array(owner_of_row)
    return {name: column.take(indices) for name, column in columns.items()}


def _check_size(columns: Columns, owner_of_row: Ints, options: ConversionOptions) -> None:
    if sum(column.nbytes for column in columns.values()) * len(owner_of_row) <= options.max_batch_bytes:
        return
    owners, rows_of = np.unique(owner_of_row, return_counts=True)
    size = sum(int(rows_of @ element_bytes(column)[owners]) for column in columns.values())
    check_limit("bytes of repeated resources, scopes and metrics in the rows", size, options.max_batch_bytes)


def _tile(one: pa.Array, count: int) -> pa.Array:
    """Repeat the only element `count` times. Faster than `take`: it copies whole buffers."""
    tiled = one
    while len(tiled) < count:
        tiled = pa.concat_arrays([tiled] * min(_TILES, -(-count // len(tiled))))
    return tiled.slice(0, count)


# Spans


def span_columns(resources: pa.StructArray, options: ConversionOptions) -> Columns:
    origin = walk(resources, options)
    spans = origin.items
    event_lists, link_lists = spans.field("events"), spans.field("links")
    sources = [spans, event_lists.values, link_lists.values]
    own, of_events, of_links, of_resources, of_scopes = attribute_columns(
        [*(source.field("attributes") for source in sources), *origin.attributes], options.max_depth
    )
    message, code = spans.field("status").flatten()  # null where a span has no status
    start = spans.field("start_time_unix_nano")
    return {
        "time": timestamps(start),
        "trace_id": null_if_empty(spans.field("trace_id")),
        "span_id": null_if_empty(spans.field("span_id")),
        "parent_span_id": null_if_empty(spans.field("parent_span_id")),
        "trace_state": spans.field("trace_state"),
        "flags": spans.field("flags").cast(pa.int64()),
        "name": spans.field("name"),
        "kind": spans.field("kind"),
        "start_time_unix_nano": start,
        "end_time_unix_nano": spans.field("end_time_unix_nano"),
        "status_code": code,
        "status_message": message,
        **named(own),
        "dropped_attributes_count": spans.field("dropped_attributes_count"),
        "events": _events(event_lists, of_events),
        "dropped_events_count": spans.field("dropped_events_count"),
        "links": _links(link_lists, of_links),
        "dropped_links_count": spans.field("dropped_links_count"),
        **promoted_columns(own[0], AttributeOwner.ITEM, options),
        **origin.columns(origin.scope_of_item, of_resources, of_scopes, options),
    }


def _events(lists: pa.ListArray, attributes: list[pa.Array]) -> pa.Array:
    events = lists.values
    parts = [
        events.field("time_unix_nano"),
        events.field("name"),
        *attributes,
        events.field("dropped_attributes_count"),
    ]
    return relist(lists, parts, EVENT)


def _links(lists: pa.ListArray, attributes: list[pa.Array]) -> pa.Array:
    links = lists.values
    parts = [
        null_if_empty(links.field("trace_id")),
        null_if_empty(links.field("span_id")),
        links.field("trace_state"),
        links.field("flags").cast(pa.int64()),
        *attributes,
        links.field("dropped_attributes_count"),
    ]
    return relist(lists, parts, LINK)


# Log records


def log_columns(resources: pa.StructArray, options: ConversionOptions) -> Columns:
    origin = walk(resources, options)
    records = origin.items
    own, of_resources, of_scopes = attribute_columns(
        [records.field("attributes"), *origin.attributes], options.max_depth
    )
    time, observed = records.field("time_unix_nano"), records.field("observed_time_unix_nano")
    return {
        "time": timestamps(time, fallback=observed),
        "time_unix_nano": time,
        "observed_time_unix_nano": observed,
        "severity_number": records.field("severity_number"),
        "severity_text": records.field("severity_text"),
        **_body(records.field("body"), options),
        "event_name": records.field("event_name"),
        "trace_id": null_if_empty(records.field("trace_id")),
        "span_id": null_if_empty(records.field("span_id")),
        "flags": records.field("flags").cast(pa.int64()),
        **named(own),
        "dropped_attributes_count": records.field("dropped_attributes_count"),
        **promoted_columns(own[0], AttributeOwner.ITEM, options),
        **origin.columns(origin.scope_of_item, of_resources, of_scopes, options),
    }


def _body(raw: pa.Array, options: ConversionOptions) -> Columns:
    """Return the body's text and type, and its serialized form if those say less than was sent."""
    present = valid(raw)
    texts = texts_of(
        decode_values(raw).columns,
        present,
        lambda rows: map(AnyValue.FromString, raw.take(rows).to_pylist()),
        options.max_depth,
    )
    kept = present & texts.odd
    exact = raw.take(pa.array(np.arange(len(raw)), mask=~kept)) if kept.any() else pa.nulls(len(raw), pa.binary())
    return {
        "body": texts.text,
        "body_type": pa.array(texts.types.astype(np.int32), mask=~present),
        "body_otlp": exact,
    }


# Data points of all kinds of metrics. The points of each kind are made with the columns of that kind, and then put into
# the order of the request.


_QUANTILES = pa.list_(pa.field("element", QUANTILE))


def point_columns(resources: pa.StructArray, options: ConversionOptions) -> Columns:
    origin = walk(resources, options)
    metrics = origin.items
    lists = {kind: metrics.field(kind).field("data_points") for kind in KINDS}
    count = sum(len(points.values) for points in lists.values())
    check_limit("data points in the request", count, options.max_rows)
    metadata, of_resources, of_scopes = attribute_columns(
        [metrics.field("metadata"), *origin.attributes], options.max_depth
    )
    metric_of_point = np.concatenate([owners_of(points) for points in lists.values()])
    order = np.argsort(metric_of_point, kind="stable")
    metric_of_row = metric_of_point[order]
    repeated = {
        **repeat(_metric_columns(metrics, metadata), metric_of_row, options),
        **origin.columns(origin.scope_of_item[metric_of_row], of_resources, of_scopes, options),
    }
    own = pa.schema([field for field in topic_schema(Signal.METRICS, options) if field.name not in repeated])
    rows = [_filled(_points(kind, lists[kind].values, options), own) for kind in KINDS if len(lists[kind].values)]
    return repeated | _in_order(rows, order, own)


def _points(kind: str, points: pa.StructArray, options: ConversionOptions) -> Columns:
    sources = [points.field("attributes")]
    exemplar_lists = points.field("exemplars") if kind != "summary" else None
    if exemplar_lists is not None:
        sources.append(exemplar_lists.values.field("filtered_attributes"))
    own, *of_exemplars = attribute_columns(sources, options.max_depth)
    time = points.field("time_unix_nano")
    columns = {
        "time": timestamps(time),
        "type": pa.repeat(pa.scalar(kind), len(points)),
        "start_time_unix_nano": points.field("start_time_unix_nano"),
        "time_unix_nano": time,
        "flags": points.field("flags"),
        **named(own),
        **KINDS[kind](points),
        **promoted_columns(own[0], AttributeOwner.ITEM, options),
    }
    if exemplar_lists is not None:
        columns["exemplars"] = _exemplars(exemplar_lists, of_exemplars[0])
    return columns


def _metric_columns(metrics: pa.StructArray, metadata: list[pa.Array]) -> Columns:
    """Return the columns that all points of a metric share. The members of other kinds are null."""
    kinds = [metrics.field(kind) for kind in ("sum", "histogram", "exponential_histogram")]
    return {
        "name": metrics.field("name"),
        "description": metrics.field("description"),
        "unit": metrics.field("unit"),
        **named(metadata, "metadata"),
        "aggregation_temporality": pc.coalesce(*(pc.struct_field(kind, "aggregation_temporality") for kind in kinds)),
        "is_monotonic": pc.struct_field(kinds[0], "is_monotonic"),
    }


def _number(points: pa.StructArray) -> Columns:
    return {
        "value_int": points.field("as_int"),
        "value_double": points.field("as_double"),
    }


def _histogram(points: pa.StructArray) -> Columns:
    return {
        **_as_they_are(points, "count", "sum", "min", "max"),
        "bucket_counts": points.field("bucket_counts").cast(INTS),
        "explicit_bounds": points.field("explicit_bounds").cast(DOUBLES),
    }


def _exponential_histogram(points: pa.StructArray) -> Columns:
    return {
        **_as_they_are(points, "count", "sum", "min", "max", "scale", "zero_count", "zero_threshold"),
        "positive": points.field("positive").cast(BUCKETS),
        "negative": points.field("negative").cast(BUCKETS),
    }


def _summary(points: pa.StructArray) -> Columns:
    return {
        **_as_they_are(points, "count", "sum"),
        "quantile_values": points.field("quantile_values").cast(_QUANTILES),
    }


KINDS: dict[str, Callable[[pa.StructArray], Columns]] = {
    "gauge": _number,
    "sum": _number,
    "histogram": _histogram,
    "exponential_histogram": _exponential_histogram,
    "summary": _summary,
}
"""By the name of the metric's field, which is also the `type` of its rows."""


def _as_they_are(points: pa.StructArray, *names: str) -> Columns:
    return {name: points.field(name) for name in names}


def _exemplars(lists: pa.ListArray, attributes: list[pa.Array]) -> pa.Array:
    exemplars = lists.values
    parts = [
        exemplars.field("time_unix_nano"),
        exemplars.field("as_int"),
        exemplars.field("as_double"),
        null_if_empty(exemplars.field("trace_id")),
        null_if_empty(exemplars.field("span_id")),
        *attributes,
    ]
    return relist(lists, parts, EXEMPLAR)


def _filled(columns: Columns, schema: pa.Schema) -> pa.RecordBatch:
    """Return all columns of the topic. Those that a kind of metric lacks are null."""
    count = len(columns["time"])
    there = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(there, schema=schema)


def _in_order(rows: list[pa.RecordBatch], order: Ints, schema: pa.Schema) -> Columns:
    if not rows:
        return {field.name: pa.array([], field.type) for field in schema}
    merged = rows[0] if len(rows) == 1 else pa.concat_batches(rows).take(pa.array(order))
    return dict(zip(schema.names, merged.columns, strict=True))


_COLUMNS: dict[Signal, Callable[[pa.StructArray, ConversionOptions], Columns]] = {
    Signal.TRACES: span_columns,
    Signal.LOGS: log_columns,
    Signal.METRICS: point_columns,
}


def to_batch(signal: Signal, request: bytes, options: ConversionOptions = DEFAULTS) -> pa.RecordBatch:
    """Return the rows of a serialized request: one a span, log record or data point, in the request's order."""
    check_limit("bytes in the request", len(request), options.max_request_bytes)
    columns = _COLUMNS[signal](decode_request(signal, request), options)
    schema = topic_schema(signal, options)
    batch = pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)
    check_limit("bytes in the rows of the request", batch.nbytes, options.max_batch_bytes)
    return batch
