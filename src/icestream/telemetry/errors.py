"""Why telemetry is refused, beyond what every publisher may hear."""

from icestream.model.errors import IcestreamError, OverloadedError


class TenantRefusedError(IcestreamError):
    """A tenant that is not known, or that the sender may not speak for."""

    code = "tenant_refused"


class RateLimitedError(OverloadedError):
    """A tenant sends more than it may; `retry_after_seconds` says when it may again."""

    code = "rate_limited"

    @property
    def retry_after_seconds(self) -> float:
        return float(self.details.get("retry_after_seconds", 1.0))
