"""Names that settings may not give away, because something else has them already.

Settings are read before anything else is there, so these lists stand here and not with what uses the names: telemetry
takes its reserved tenants from here, and a test holds the columns against the schemas.
"""

import re

RESERVED_NAMESPACES = frozenset({"icestream", "information_schema", "pg_catalog", "sys", "system", "temp"})
"""Names that query engines, or icestream itself, use for other things; those that begin with `_` are reserved too."""
TENANT_RULE = (
    "a tenant's name is 1 to 100 of A-Z a-z 0-9 _ - . and begins with a letter or a digit; reserved are "
    + ", ".join(sorted(RESERVED_NAMESPACES))
)
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}", re.ASCII)

TELEMETRY_COLUMNS = frozenset(
    [
        "aggregation_temporality",
        "attributes",
        "attributes_otlp",
        "attributes_types",
        "body",
        "body_otlp",
        "body_type",
        "bucket_counts",
        "count",
        "description",
        "dropped_attributes_count",
        "dropped_events_count",
        "dropped_links_count",
        "end_time_unix_nano",
        "event_name",
        "events",
        "exemplars",
        "explicit_bounds",
        "flags",
        "is_monotonic",
        "kind",
        "links",
        "max",
        "metadata",
        "metadata_otlp",
        "metadata_types",
        "min",
        "name",
        "negative",
        "observed_time_unix_nano",
        "parent_span_id",
        "positive",
        "quantile_values",
        "resource",
        "resource_schema_url",
        "scale",
        "scope",
        "scope_schema_url",
        "service_name",
        "severity_number",
        "severity_text",
        "span_id",
        "start_time_unix_nano",
        "status_code",
        "status_message",
        "sum",
        "time",
        "time_unix_nano",
        "trace_id",
        "trace_state",
        "type",
        "unit",
        "value_double",
        "value_int",
        "zero_count",
        "zero_threshold",
    ]
)
"""The columns that the three topics of telemetry have of themselves."""
ENVELOPE_COLUMNS = ("_offset", "_publish_time", "_producer", "_sequence")
"""What the broker adds to every row. Longer names that begin with one of them are kept free too."""
ENGINE_COLUMNS = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
"""Names that query engines give to columns of their own."""

USED_HEADERS = frozenset(
    [
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "te",
        "transfer-encoding",
        "user-agent",
    ]
)
"""Headers that say something else in every request."""


def is_tenant(name: str) -> bool:
    """Whether a tenant can have this name."""
    return _TENANT.fullmatch(name) is not None and name.lower() not in RESERVED_NAMESPACES


def why_no_column(name: str) -> str | None:
    """Why a promoted attribute cannot have the column `name`, as a phrase that follows it; None where it can.

    Case makes no difference: query engines do not tell such columns apart.
    """
    folded = name.lower()
    if folded in TELEMETRY_COLUMNS:
        return "is a column of telemetry already"
    if folded.startswith(ENVELOPE_COLUMNS):
        return f"is reserved, as is all that begins with {', '.join(ENVELOPE_COLUMNS)}"
    if folded in ENGINE_COLUMNS:
        return "is a name that query engines use for a column of their own"
    return None


def why_no_header(name: str) -> str | None:
    """Why a header cannot name a tenant or a dataset, as a phrase that follows the setting; None where it can."""
    if name in USED_HEADERS:
        return "is a header that has another meaning: choose one of your own, such as x-tenant-id"
    if name.startswith("grpc-") or name.endswith("-bin"):
        return "is a header that gRPC keeps to itself or reads as bytes: choose one without grpc- before or -bin behind"
    return None
