"""Figures of tenants, as tables."""

from typing import Any

from rich.table import Table

from icestream.cli.display import table
from icestream.cli.formatting import NOTHING, count_text, duration_text, plural, size_text


def received_table(tenants: list[dict[str, Any]]) -> Table:
    """What came in at the doors for OpenTelemetry: a row a tenant and signal."""
    numbers = ("requests", "rows", "size", "rejected rows")
    made = table("tenant", "signal", *numbers, "refused requests", numbers=numbers)
    for tenant in tenants:
        for signal, counts in sorted(tenant["received"].items()):
            made.add_row(
                tenant["tenant"],
                signal,
                count_text(counts["requests"]),
                count_text(counts["rows"]),
                size_text(counts["bytes"]),
                count_text(counts["rejected_rows"]),
                ", ".join(f"{code} {count_text(count)}" for code, count in counts["refused"].items()) or NOTHING,
            )
    return made


def written_table(tenants: list[dict[str, Any]]) -> Table:
    """What reached tables, and what waits: a row a tenant."""
    numbers = ("topics", "into tables", "size", "commits", "failures", "quarantined", "lag")
    made = table("tenant", *numbers, numbers=numbers)
    for tenant in tenants:
        written, seconds = tenant["pipeline"], tenant["table_lag_seconds"]
        lag = count_text(tenant["table_lag_messages"])
        made.add_row(
            tenant["tenant"],
            count_text(tenant["topics"]),
            count_text(written["messages"]),
            size_text(written["bytes"]),
            count_text(written["commits"]),
            count_text(written["failures"]),
            count_text(tenant["quarantined"]),
            f"{lag}, {duration_text(seconds)}" if seconds else lag,
        )
    return made


def failing_lines(tenants: list[dict[str, Any]]) -> list[str]:
    failing = [tenant for tenant in tenants if tenant["failing_topics"]]
    return [
        f"{tenant['tenant']}: {plural(tenant['failing_topics'], 'topic')} cannot be written to tables: see "
        "`icestream stats`"
        for tenant in failing
    ]
