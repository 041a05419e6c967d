"""Counters of tenants never fall, whoever goes."""

from icestream.protocol.admin import TenantStats
from icestream.protocol.pipeline import WriteFigures
from icestream.server.metrics import TenantCollector
from icestream.storage.tenant_figures import OTHER_TENANT, TenantFigures


class Told(TenantFigures):
    """Figures as a test wants them: how many messages of which tenant are written."""

    def __init__(self) -> None:
        self.messages: dict[str, int] = {}

    def all(self) -> list[TenantStats]:
        return [
            TenantStats(
                tenant=tenant,
                topics=1,
                received={},
                pipeline=WriteFigures(messages=messages, bytes=8 * messages, commits=1),
                failing_topics=0,
                quarantined=0,
                table_lag_messages=0,
                table_lag_bytes=0,
                table_lag_seconds=0.0,
            )
            for tenant, messages in self.messages.items()
        ]


class Scraped:
    def __init__(self, max_tenants: int) -> None:
        self._told = Told()
        self._collector = TenantCollector(self._told, max_tenants)

    def after(self, **messages: int) -> dict[str, float]:
        self._told.messages = messages
        return {
            sample.labels["tenant"]: sample.value
            for metric in self._collector.collect()
            for sample in metric.samples
            if sample.name == "icestream_tenant_table_messages_total"
        }


def test_what_tenants_beyond_the_bound_had_written_stays_when_they_are_gone() -> None:
    scraped = Scraped(max_tenants=1)
    assert scraped.after(a=1, b=10, c=5) == {"a": 1, OTHER_TENANT: 15}
    assert scraped.after(a=1, c=6) == {"a": 1, OTHER_TENANT: 16}
    assert scraped.after(a=1, c=6) == {"a": 1, OTHER_TENANT: 16}
    assert scraped.after(a=1, b=2, c=6) == {"a": 1, OTHER_TENANT: 18}
    assert scraped.after(a=1) == {"a": 1, OTHER_TENANT: 18}


def test_a_tenant_with_series_of_its_own_goes_on_where_it_was() -> None:
    scraped = Scraped(max_tenants=1)
    assert scraped.after(a=7) == {"a": 7}
    assert scraped.after() == {"a": 7}
    assert scraped.after(a=2) == {"a": 9}
    assert scraped.after(a=0) == {"a": 9}
    assert scraped.after(a=4) == {"a": 13}
