"""Data points as rows, whatever kind of metric they belong to.

Each kind is made by itself, with the columns that it has; then the points of all kinds are put into the order of the
request.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.telemetry.arrays import Ints, null_if_empty, owners_of, relist, timestamps
from icestream.telemetry.attributes import attribute_columns, named
from icestream.telemetry.options import Options, Source, check_limit
from icestream.telemetry.origin import Columns, promoted_columns, repeat, walk
from icestream.telemetry.schemas import BUCKETS, DOUBLES, EXEMPLAR, INTS, QUANTILE, topic_schema
from icestream.telemetry.signals import Signal

_QUANTILES = pa.list_(pa.field("element", QUANTILE))


def point_columns(resources: pa.StructArray, options: Options) -> Columns:
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


def _points(kind: str, points: pa.StructArray, options: Options) -> Columns:
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
        **promoted_columns(own[0], Source.ITEM, options),
    }
    if exemplar_lists is not None:
        columns["exemplars"] = _exemplars(exemplar_lists, of_exemplars[0])
    return columns


def _metric_columns(metrics: pa.StructArray, metadata: list[pa.Array]) -> Columns:
    """What all points of a metric share. A metric is of one kind, and the members of the others are null."""
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
"""By the name of the metric's field, which is also what its rows have as `type`."""


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
    """All columns of the topic; those that a kind of metric does not have are null."""
    count = len(columns["time"])
    there = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(there, schema=schema)


def _in_order(rows: list[pa.RecordBatch], order: Ints, schema: pa.Schema) -> Columns:
    if not rows:
        return {field.name: pa.array([], field.type) for field in schema}
    merged = rows[0] if len(rows) == 1 else pa.concat_batches(rows).take(pa.array(order))
    return dict(zip(schema.names, merged.columns, strict=True))
