"""What travels in JSON about tenants."""

from pydantic import Field

from icestream.server.http.models import Model, QueryInt
from icestream.server.tenant_figures import MAX_TENANTS


class TenantsQuery(Model):
    limit: QueryInt = Field(default=100, ge=1, le=MAX_TENANTS, description="Most tenants in the answer.")
    after: str = Field(
        default="", max_length=100, description="Go on after this tenant: `next_after` of the last page."
    )


class TenantReceived(Model):
    requests: int = Field(description="Requests that were accepted.")
    rows: int = Field(description="Spans, log records or data points of these that are durable.")
    bytes: int = Field(description="Of these requests, decompressed.")
    rejected_rows: int = Field(description="Rows of these requests that were not stored.")
    refused: dict[str, int] = Field(description="Requests that were refused, by error code.")


class TenantWritten(Model):
    """What the pipeline has done for the tenant's topics."""

    messages: int
    bytes: int = Field(description="As Arrow.")
    files: int
    file_bytes: int
    commits: int
    conflicts: int
    failures: int = Field(description="Ranges that could not be written or committed.")
    lost: int = Field(description="Messages that a repair of the log had given up.")
    quarantined: int = Field(description="Frames that were put aside.")
    translate_seconds: float
    commit_seconds: float


class Tenant(Model):
    tenant: str = Field(description="A namespace; `(other)` is what is no tenant's own.")
    topics: int
    received: dict[str, TenantReceived] = Field(description="What came in at the doors for OpenTelemetry, by signal.")
    pipeline: TenantWritten
    failing_topics: int = Field(description="Topics that the pipeline cannot write just now.")
    quarantined: int = Field(description="Frames in quarantine.")
    table_lag_messages: int = Field(description="Messages that are not in tables yet.")
    table_lag_bytes: int = Field(description="About their bytes.")
    table_lag_seconds: float = Field(description="Age of the oldest of them.")


class Tenants(Model):
    tenants: list[Tenant]
    next_after: str | None = Field(description="`after` of the next page; null on the last one.")
