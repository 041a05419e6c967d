"""Whose OpenTelemetry it is, how much, and what its topics look like."""

import re
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from icestream.config.fields import Allowed, DefaultText, Section, Unit, refuse
from icestream.config.reserved import TENANT_RULE, is_tenant, why_no_column, why_no_header
from icestream.model.units import GIB, MIB, TIB

_HEADER = r"^[a-z0-9][a-z0-9\-]*$"
_HEADER_TEXT = Allowed("a header's name of up to 100 small letters, digits and -, such as x-team")
_PROMOTED = re.compile(r"(?:(?P<source>resource|scope|item):)?(?P<key>[^=]+)(?:=(?P<column>[A-Za-z_][A-Za-z0-9_]*))?")


class PromotedAttribute(NamedTuple):
    source: str
    key: str
    column: str


class TelemetrySettings(Section):
    """OpenTelemetry's signals as tenants' topics. Used by the OTLP doors."""

    tenants: str = Field(
        default="",
        description="Tenants that are known besides those that `auth.tokens` names, separated by commas.",
    )
    auto_create_tenants: Annotated[bool | None, DefaultText("true without `auth.tokens`, else false")] = Field(
        default=None, description="Take in tenants that nobody has named before."
    )
    default_tenant: str | None = Field(
        default="default", description="The tenant of requests that name none; unset, they are refused."
    )
    tenant_header: Annotated[str, _HEADER_TEXT] = Field(
        default="x-tenant-id",
        pattern=_HEADER,
        max_length=100,
        description="Header that names the tenant, in small letters. A tenant's own token leaves no choice.",
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
        description="Attribute of resources that names their tenant, so that a request may carry those of several.",
    )
    promoted_attributes: str = Field(
        default="",
        description="Attributes that get a column of their own, separated by commas: `key`, `key=column`, and with "
        "`resource:` or `scope:` before it where it is not one of the span, log record or data point.",
    )
    partition: Literal["hour", "day", "none"] = Field(
        default="day", description="How new topics' tables are partitioned, by the time of publishing."
    )
    max_request_bytes: int = Field(
        default=8 * MIB,
        ge=1024,
        le=GIB,
        description="Largest request, after decompression. One is decoded at a time, and takes up to 90 times as much.",
    )
    max_request_rows: Annotated[int, Unit("rows")] = Field(
        default=100_000, ge=1, le=1_000_000, description="Most spans, log records or data points of a request."
    )
    max_bytes_per_second: Annotated[int | None, Unit("bytes")] = Field(
        default=None, ge=1, le=TIB, description="Of a tenant's requests, after decompression; unset, without limit."
    )
    max_requests_per_second: Annotated[int | None, Unit("requests")] = Field(
        default=None, ge=1, le=1_000_000, description="Of a tenant; unset, without limit."
    )
    max_topics_per_tenant: Annotated[int, Unit("topics")] = Field(
        default=30, ge=1, le=100_000, description="Most telemetry topics of a tenant; each dataset has up to three."
    )
    max_tracked_tenants: Annotated[int, Unit("tenants")] = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description="Most tenants whose rates are remembered, and whose requests are counted by name.",
    )
    max_metric_tenants: Annotated[int, Unit("tenants")] = Field(
        default=100,
        ge=0,
        le=100_000,
        description="Most tenants with series of their own in the metrics; the others are one, `(other)`.",
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
                refuse("tenants", f"names {tenant!r}, which can be no tenant: {TENANT_RULE}")
        if self.default_tenant is not None and not is_tenant(self.default_tenant):
            refuse("default_tenant", f"can be no tenant: {TENANT_RULE}")
        return self

    @model_validator(mode="after")
    def _headers_say_one_thing_each(self) -> Self:
        for key in ("tenant_header", "dataset_header"):
            if reason := why_no_header(getattr(self, key)):
                refuse(key, reason)
        if self.dataset_header == self.tenant_header:
            refuse("dataset_header", "is telemetry.tenant_header too: each needs a header of its own")
        return self

    @model_validator(mode="after")
    def _promoted_columns_are_free(self) -> Self:
        """A column that tables do not take would have every request refused, and senders do not repeat those."""
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
