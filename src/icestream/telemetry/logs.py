"""Log records as rows."""

import numpy as np
import pyarrow as pa
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from icestream.telemetry.arrays import null_if_empty, timestamps, valid
from icestream.telemetry.attributes import attribute_columns, named
from icestream.telemetry.options import Options, Source
from icestream.telemetry.origin import Columns, promoted_columns, walk
from icestream.telemetry.values import texts_of
from icestream.telemetry.wire import decode_values


def log_columns(resources: pa.StructArray, options: Options) -> Columns:
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
        **promoted_columns(own[0], Source.ITEM, options),
        **origin.columns(origin.scope_of_item, of_resources, of_scopes, options),
    }


def _body(raw: pa.Array, options: Options) -> Columns:
    """The body's text, type and, where those say less than was sent, its serialized form."""
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
