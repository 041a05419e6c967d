"""What is counted of tenants' requests, and that the number of tenants is bounded."""

import threading

import pytest

from icestream.model.errors import InvalidNameError
from icestream.model.names import check_part
from icestream.storage.tenant_figures import OTHER_TENANT
from icestream.telemetry import Signal
from icestream.telemetry.tenants import OTHER, TenantStatistics


def test_requests_are_counted_by_tenant_and_signal() -> None:
    counted = TenantStatistics(10)
    counted.accepted("acme", Signal.LOGS, rows=5, nbytes=100)
    counted.accepted("acme", Signal.LOGS, rows=0, nbytes=20)
    counted.accepted("acme", Signal.TRACES, rows=1, nbytes=10)
    counted.rejected("acme", Signal.LOGS, 3)
    counted.refused("acme", Signal.LOGS, "rate_limited")
    counted.refused("acme", Signal.LOGS, "rate_limited")
    counted.refused(None, Signal.LOGS, "unauthenticated")
    figures = counted.figures()
    assert figures["acme"] == {
        "logs": {"requests": 2, "rows": 5, "bytes": 120, "rejected_rows": 3, "refused": {"rate_limited": 2}},
        "traces": {"requests": 1, "rows": 1, "bytes": 10, "rejected_rows": 0, "refused": {}},
    }
    assert figures[OTHER]["logs"]["refused"] == {"unauthenticated": 1}
    assert list(figures) == ["acme", OTHER]


def test_names_that_nobody_knows_and_that_bring_nothing_take_no_room() -> None:
    counted = TenantStatistics(10, {"known"}.__contains__)
    for number in range(1000):
        counted.refused(f"made up {number}", Signal.LOGS, "tenant_refused")
        counted.accepted(f"empty {number}", Signal.LOGS, rows=0, nbytes=1)
    counted.refused("known", Signal.LOGS, "rate_limited")
    figures = counted.figures()
    assert set(figures) == {"known", OTHER}
    assert figures[OTHER]["logs"]["refused"] == {"tenant_refused": 1000}
    assert figures[OTHER]["logs"]["requests"] == 1000


def test_tenants_beyond_the_bound_are_counted_together() -> None:
    counted = TenantStatistics(2)
    for tenant in ("a", "b", "c", "d", "a"):
        counted.accepted(tenant, Signal.METRICS, rows=1, nbytes=1)
    figures = counted.figures()
    assert {tenant: signals["metrics"]["rows"] for tenant, signals in figures.items()} == {"a": 2, "b": 1, OTHER: 2}


def test_reasons_are_bounded_too() -> None:
    counted = TenantStatistics(1)
    for number in range(500):
        counted.refused(None, Signal.LOGS, f"code {number}")
    refused = counted.figures()[OTHER]["logs"]["refused"]
    assert len(refused) == 101
    assert sum(refused.values()) == 500


def test_no_count_is_lost_between_threads() -> None:
    counted = TenantStatistics(10)

    def count() -> None:
        for _ in range(2000):
            counted.accepted("acme", Signal.LOGS, rows=1, nbytes=1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted.figures()["acme"]["logs"]["rows"] == 8000


def test_both_layers_call_the_rest_the_same_as_no_namespace_can_be_called() -> None:
    assert OTHER == OTHER_TENANT
    with pytest.raises(InvalidNameError):
        check_part(OTHER, what="namespace")
