"""Spans as rows."""

import pyarrow as pa

from icestream.telemetry.arrays import null_if_empty, relist, timestamps
from icestream.telemetry.attributes import attribute_columns, named
from icestream.telemetry.options import Options, Source
from icestream.telemetry.origin import Columns, promoted_columns, walk
from icestream.telemetry.schemas import EVENT, LINK


def span_columns(resources: pa.StructArray, options: Options) -> Columns:
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
        **promoted_columns(own[0], Source.ITEM, options),
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
