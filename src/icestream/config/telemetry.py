"""OpenTelemetry: tenants, limits, and the layout of their topics.

The reserved names are listed here because settings load without the packages that define them. A test compares the
columns with the schemas of `icestream.telemetry`.
"""

import re
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from icestream.config.fields import Allowed, DefaultText, Section, Unit, refuse
from icestream.model.units import GIB, MIB, TIB

RESERVED_NAMESPACES = frozenset({"icestream", "information_schema", "pg_catalog", "sys", "system", "temp"})
"""Names that query engines or icestream itself use. Names that begin with `_` are reserved too."""
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
"""The columns of the three telemetry topics."""
ENVELOPE_COLUMNS = ("_offset", "_publish_time", "_producer", "_sequence")
"""The columns that the broker adds to every row. Names that begin with one of them are reserved too."""
ENGINE_COLUMNS = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
"""The column names of query engines."""

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
"""Headers that have another meaning in every request."""


def is_tenant(name: str) -> bool:
    """Return whether a tenant can have this name."""
    return _TENANT.fullmatch(name) is not None and name.lower() not in RESERVED_NAMESPACES


def why_no_column(name: str) -> str | None:
    """Return why a promoted attribute cannot have the column `name`, as a phrase after it; None if it can.

    Case makes no difference, as in query engines.
    """
    folded = name.lower()
    if folded in TELEMETRY_COLUMNS:
        return "is a column of telemetry"
    if folded.startswith(ENVELOPE_COLUMNS):
        return f"is reserved, as are names that begin with {', '.join(ENVELOPE_COLUMNS)}"
    if folded in ENGINE_COLUMNS:
        return "is a column name of query engines"
    return None


def why_no_header(name: str) -> str | None:
    """Return why a header cannot name a tenant or a dataset, as a phrase after the setting; None if it can."""
    if name in USED_HEADERS:
        return "is a header with another meaning: choose your own, such as x-tenant-id"
    if name.startswith("grpc-") or name.endswith("-bin"):
        return "is a header that gRPC reserves or reads as bytes: choose one without grpc- before it and -bin after it"
    return None


_HEADER = r"^[a-z0-9][a-z0-9\-]*$"
_HEADER_TEXT = Allowed("a header's name of up to 100 small letters, digits and -, such as x-team")
_PROMOTED = re.compile(r"(?:(?P<source>resource|scope|item):)?(?P<key>[^=]+)(?:=(?P<column>[A-Za-z_][A-Za-z0-9_]*))?")


class PromotedAttribute(NamedTuple):
    source: str
    key: str
    column: str


class TelemetrySettings(Section):
    """OpenTelemetry: tenants, limits, and the layout of their topics. Used by the OTLP servers."""

    tenants: str = Field(
        default="",
        description="Known tenants, separated by commas, besides the namespaces in `auth.tokens`.",
    )
    auto_create_tenants: Annotated[bool | None, DefaultText("true without `auth.tokens`, else false")] = Field(
        default=None, description="Accept tenants that are not named in the settings."
    )
    default_tenant: str | None = Field(
        default="default", description="The tenant of requests that name none; unset, such requests are refused."
    )
    tenant_header: Annotated[str, _HEADER_TEXT] = Field(
        default="x-tenant-id",
        pattern=_HEADER,
        max_length=100,
        description="Header that names the tenant, in small letters. A token for one tenant overrides it.",
    )
    dataset_header: Annotated[str, _HEADER_TEXT] = Field(
        default="x-dataset-id",
        pattern=_HEADER,
        max_length=100,
        description="Header that names a dataset, in small letters: its topics are `tenant/dataset_traces` and so on.",
    )
    tenant_attribute: str | None = Field(
        default=None,
        max_length=200,
        description="Resource attribute that names the tenant; one request may then carry data of several tenants.",
    )
    promoted_attributes: str = Field(
        default="",
        description="Attributes with their own column, separated by commas: `key` or `key=column`; `resource:` or "
        "`scope:` before it if the attribute is not one of the span, log record or data point.",
    )
    partition: Literal["hour", "day", "none"] = Field(
        default="day", description="How tables of new topics are partitioned, by publish time."
    )
    max_request_bytes: int = Field(
        default=8 * MIB,
        ge=1024,
        le=GIB,
        description="Largest request, after decompression. One is decoded at a time, in up to 90 times its size.",
    )
    max_request_rows: Annotated[int, Unit("rows")] = Field(
        default=100_000, ge=1, le=1_000_000, description="Most spans, log records or data points of a request."
    )
    max_bytes_per_second: Annotated[int | None, Unit("bytes")] = Field(
        default=None, ge=1, le=TIB, description="Limit of a tenant's requests, after decompression; unset, no limit."
    )
    max_requests_per_second: Annotated[int | None, Unit("requests")] = Field(
        default=None, ge=1, le=1_000_000, description="Limit of a tenant; unset, no limit."
    )
    max_topics_per_tenant: Annotated[int, Unit("topics")] = Field(
        default=30, ge=1, le=100_000, description="Most telemetry topics of a tenant; each dataset has up to three."
    )
    max_tracked_tenants: Annotated[int, Unit("tenants")] = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description="Most tenants whose rates are limited and whose requests are counted by name.",
    )
    max_metric_tenants: Annotated[int, Unit("tenants")] = Field(
        default=100,
        ge=0,
        le=100_000,
        description="Most tenants with their own metric series; all others share one, `(other)`.",
    )

    @property
    def named_tenants(self) -> list[str]:
        return _entries(self.tenants)

    @property
    def promoted(self) -> list[PromotedAttribute]:
        found = []
        for entry in _entries(self.promoted_attributes):
            match = _PROMOTED.fullmatch(entry)
            if match is None:
                refuse("promoted_attributes", "takes entries such as `http.route` or `resource:k8s.pod.name=pod`")
            key = match["key"].strip()
            column = match["column"] or re.sub(r"[^A-Za-z0-9_]", "_", key)
            found.append(PromotedAttribute(match["source"] or "item", key, column))
        return found

    @model_validator(mode="after")
    def _tenants_have_legal_names(self) -> Self:
        for tenant in self.named_tenants:
            if not is_tenant(tenant):
                refuse("tenants", f"names {tenant!r}, which is not a valid tenant: {TENANT_RULE}")
        if self.default_tenant is not None and not is_tenant(self.default_tenant):
            refuse("default_tenant", f"is not a valid tenant: {TENANT_RULE}")
        return self

    @model_validator(mode="after")
    def _headers_say_one_thing_each(self) -> Self:
        for key in ("tenant_header", "dataset_header"):
            if reason := why_no_header(getattr(self, key)):
                refuse(key, reason)
        if self.dataset_header == self.tenant_header:
            refuse("dataset_header", "equals telemetry.tenant_header: each needs its own header")
        return self

    @model_validator(mode="after")
    def _promoted_columns_are_free(self) -> Self:
        """Refuse columns that tables cannot have: every request would be refused, and senders do not repeat those."""
        seen: dict[str, PromotedAttribute] = {}
        for attribute in self.promoted:
            key, column = attribute.key, attribute.column
            if reason := why_no_column(column):
                refuse(
                    "promoted_attributes",
                    f"gives {key!r} the column {column!r}, which {reason}: write {key}=column with another name",
                )
            other = seen.setdefault(column.lower(), attribute)
            if other is not attribute:
                refuse(
                    "promoted_attributes",
                    f"gives {other.key!r} and {key!r} the same column, {other.column!r} and {column!r} (case makes no "
                    "difference): write key=column for one of them",
                )
        return self


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]
