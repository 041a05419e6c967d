import pytest

from icestream.config import TelemetrySettings
from icestream.telemetry.tenants import RateLimitedError, TenantLimits


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def limits(clock: Clock, **settings: int) -> TenantLimits:
    return TenantLimits(TelemetrySettings.model_validate(settings), clock)


def refused(found: TenantLimits, **sizes: int) -> float:
    with pytest.raises(RateLimitedError) as caught:
        found.take(sizes)
    assert caught.value.retryable
    return caught.value.retry_after_seconds


def test_requests_pass_up_to_the_burst_and_then_at_the_rate() -> None:
    clock = Clock()
    found = limits(clock, max_requests_per_second=10)
    for _ in range(20):
        found.take({"acme": 1})
    wait = refused(found, acme=1)
    assert 0 < wait <= 0.2
    clock.now += wait
    found.take({"acme": 1})
    refused(found, acme=1)


def test_the_time_that_is_told_is_enough() -> None:
    clock = Clock()
    found = limits(clock, max_bytes_per_second=1000)
    found.take({"acme": 10_000})  # one request of any size, which time has to pay for
    wait = refused(found, acme=1)
    assert 8 < wait < 9
    clock.now += wait - 0.1
    refused(found, acme=1)
    clock.now += 0.1
    found.take({"acme": 1})


def test_over_a_long_time_the_rate_holds() -> None:
    clock = Clock()
    found, passed = limits(clock, max_bytes_per_second=1000), 0
    for _ in range(10_000):
        clock.now += 0.01
        try:
            found.take({"acme": 700})
        except RateLimitedError:
            continue
        passed += 700
    assert 100_000 <= passed <= 100_000 + 2000 + 700


def test_tenants_do_not_share() -> None:
    clock = Clock()
    found = limits(clock, max_bytes_per_second=10)
    found.take({"acme": 1000})
    refused(found, acme=1)
    found.take({"globex": 1})


def test_a_request_of_several_tenants_counts_for_all_or_for_none() -> None:
    clock = Clock()
    found = limits(clock, max_bytes_per_second=10)
    found.take({"acme": 1000})
    refused(found, globex=1000, acme=1)
    found.take({"globex": 1})  # the refused one has not been counted


def test_without_limits_nothing_is_remembered() -> None:
    found = limits(Clock())
    found.take({"acme": 1 << 40})
    found.take({"acme": 1 << 40})
    assert len(found) == 0


def test_only_so_many_tenants_are_remembered() -> None:
    found = limits(Clock(), max_requests_per_second=1, max_tracked_tenants=10)
    for number in range(1000):
        found.take({f"t{number}": 1})
    assert len(found) == 10
