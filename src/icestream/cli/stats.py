"""`icestream stats`: prints statistics once."""

from typing import Any

import click
from rich.table import Table

from icestream.cli.options import broker_option, json_option
from icestream.cli.output import (
    NOTHING,
    console,
    count_text,
    duration_text,
    plural,
    print_json,
    rfc3339,
    size_text,
    table,
)
from icestream.client import BrokerEndpoint, Client
from icestream.model.enums import StorageFormat


@click.command(name="stats", epilog="Example: icestream stats default/events --json")
@click.argument("topic", required=False)
@click.option("--by-tenant", is_flag=True, help="Print sums by tenant. A tenant is a namespace.")
@click.option("--tenant", metavar="NAME", help="Print the sums of this tenant only.")
@broker_option
@json_option
def command(topic: str | None, by_tenant: bool, tenant: str | None, broker: BrokerEndpoint, as_json: bool) -> None:
    """Print statistics of topics and broker.

    Prints offsets, sizes, cache use, and the lags of tables, cloud and subscriptions, of all topics or of TOPIC. By
    tenant: OpenTelemetry data received and refused, rows written to tables, and rows that wait, since the broker
    started. For rates see `icestream top`.
    """
    if by_tenant or tenant is not None:
        if topic is not None:
            raise click.UsageError("--by-tenant and --tenant print sums of all topics: leave TOPIC out.")
        _print_tenants(broker, tenant, as_json=as_json)
        return
    with Client(broker) as client:
        response = client.stats(topic)
    if as_json:
        print_json(response)
        return
    out = console()
    out.print(topic_table(response["topics"]))
    if plain := [
        topic for topic in response["topics"] if topic.get("format") in (StorageFormat.PARQUET, StorageFormat.BOTH)
    ]:
        out.print(files_table(plain))
    if uploaded := [topic for topic in response["topics"] if is_in_cloud(topic)]:
        out.print(cloud_table(uploaded))
    if response["subscriptions"]:
        out.print(subscription_table(response["subscriptions"]))
    if topic is None:
        out.print(broker_line(response["broker"]))
    for line in (*pipeline_lines(response["pipeline"]), *trouble_lines(response["topics"])):
        out.print(line, soft_wrap=True)


def _print_tenants(broker: BrokerEndpoint, tenant: str | None, *, as_json: bool) -> None:
    with Client(broker) as client:
        tenants = client.tenant_stats(tenant)
    if as_json:
        print_json({"tenants": tenants})
        return
    out = console()
    if any(one["received"] for one in tenants):
        out.print(received_table(tenants))
    out.print(written_table(tenants))
    for line in failing_lines(tenants):
        out.print(line, soft_wrap=True)


def received_table(tenants: list[dict[str, Any]]) -> Table:
    """Return what the OpenTelemetry doors received: one row for each tenant and signal."""
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
    """Return what reached the tables, and what waits: one row for each tenant."""
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


def topic_table(topics: list[dict[str, Any]]) -> Table:
    numbers = ("messages", "size", "first", "next", "in table", "lag", "segments", "cached", "cache hits")
    made = table("topic", "state", *numbers, "last published", numbers=numbers)
    for topic in topics:
        last = topic["last_publish_time_us"]
        in_table = None if topic.get("format") == StorageFormat.PARQUET else topic["committed_offset"]
        made.add_row(
            topic["topic"],
            topic["state"],
            count_text(topic["message_count"]),
            size_text(topic["bytes_stored"]),
            count_text(topic["start_offset"]),
            count_text(topic["durable_end"]),
            NOTHING if in_table is None else count_text(in_table),
            lag_text(topic["table_lag_messages"], topic["table_lag_seconds"]),
            count_text(topic["segments"]),
            count_text(topic["cached_messages"]),
            hit_share(topic["cache_hits"], topic["cache_misses"]),
            NOTHING if last is None else rfc3339(last),
        )
    return made


def files_table(topics: list[dict[str, Any]]) -> Table:
    """Return the topics that are written as a Parquet copy, alone or in addition to their table."""
    numbers = ("in files", "lag")
    made = table("topic", "format", *numbers, numbers=numbers)
    for topic in topics:
        offset = topic["parquet_offset"]
        made.add_row(
            topic["topic"],
            topic["format"],
            NOTHING if offset is None else count_text(offset),
            lag_text(topic["parquet_lag_messages"], None),
        )
    return made


def is_in_cloud(topic: dict[str, Any]) -> bool:
    """Return whether the broker has an object store for the topic."""
    return topic.get("uploaded_offset") is not None


def cloud_table(topics: list[dict[str, Any]]) -> Table:
    numbers = ("in cloud", "upload lag", "lag size", "objects", "size")
    made = table("topic", "storage", *numbers, "last upload", numbers=numbers)
    for topic in topics:
        last, lag_bytes = topic["last_upload_us"], topic["upload_lag_bytes"]
        made.add_row(
            topic["topic"],
            topic["storage"],
            count_text(topic["uploaded_offset"]),
            lag_text(topic["upload_lag_messages"], topic["upload_lag_seconds"]),
            NOTHING if lag_bytes is None else size_text(lag_bytes),
            count_text(topic["cloud_objects"]),
            size_text(topic["cloud_bytes"]),
            NOTHING if last is None else rfc3339(last),
        )
    return made


def trouble_lines(topics: list[dict[str, Any]]) -> list[str]:
    """Return the topics with an unusable log or table, a failing upload or frames in quarantine, and why."""
    unusable = [
        f"{topic['topic']}: {topic[field]}"
        for topic in topics
        for field in ("error", "table_error")
        if topic.get(field)
    ]
    failing = [topic for topic in topics if topic.get("upload_error")]
    upload_failures = [f"{topic['topic']}: {_upload_trouble(topic)}: {topic['upload_error']}" for topic in failing]
    aside = ((topic["topic"], topic.get("quarantined", 0)) for topic in topics)
    ahead = ((topic["topic"], topic.get("publish_time_ahead_seconds")) for topic in topics)
    return [
        *unusable,
        *(
            f"{name}: publish times are {duration_text(seconds)} ahead of the clock: correct the clock, then "
            f"`icestream topic reset-clock {name}`"
            for name, seconds in ahead
            if seconds
        ),
        *upload_failures,
        *(
            f"{name}: {plural(count, 'frame')} in quarantine, see `icestream quarantine list`"
            for name, count in aside
            if count
        ),
    ]


def _upload_trouble(topic: dict[str, Any]) -> str:
    return "uploads have stopped" if topic.get("upload_state") == "stopped" else "the last upload failed"


def subscription_table(subscriptions: list[dict[str, Any]]) -> Table:
    numbers = ("consumers", "lag", "size", "unacknowledged", "sent again", "dead letters")
    made = table("topic", "subscription", "type", *numbers, numbers=numbers)
    for found in subscriptions:
        made.add_row(
            found["topic"],
            found["subscription"],
            found["type"],
            count_text(len(found["consumers"])),
            lag_text(found["lag_messages"], found["lag_seconds"]),
            size_text(found["lag_bytes"]),
            count_text(found["unacknowledged"]),
            count_text(found["redeliveries"]),
            count_text(found["dead_letters"]),
        )
    return made


def lag_text(messages: int | None, seconds: float | None) -> str:
    """Return how far a table or a subscription is behind the log."""
    if messages is None:
        return NOTHING
    return count_text(messages) if not seconds else f"{count_text(messages)}, {duration_text(seconds)}"


def pipeline_lines(pipeline: dict[str, Any]) -> list[str]:
    """Return what the pipeline has written since the broker started, and the topics it cannot write."""
    failing = [f"{name}: {topic['error']}" for name, topic in pipeline["topics"].items() if topic["error"]]
    if "passes" not in pipeline:  # a token of one namespace does not see the sums of all
        return failing
    if not pipeline["passes"]:
        return ["pipeline: no pass yet"]
    line = (
        f"pipeline: {count_text(pipeline['messages'])} messages in {count_text(pipeline['commits'])} commits, "
        f"{count_text(pipeline['files'])} files of {size_text(pipeline['file_bytes'])}, "
        f"{count_text(pipeline['conflicts'])} conflicts, {count_text(pipeline['failures'])} failures"
    )
    return [line, *failing]


def hit_share(hits: int, misses: int) -> str:
    asked = hits + misses
    return f"{hits / asked:.0%}" if asked else NOTHING


def broker_line(broker: dict[str, Any]) -> str:
    return (
        f"broker {broker['version']}: {count_text(broker['topics'])} topics, cache {size_text(broker['cache_bytes'])}, "
        f"in flight {size_text(broker['in_flight_bytes'])}, {count_text(broker['open_files'])} open files"
        + (", the disk is FULL: publishing is refused" if broker.get("disk_full") else "")
    )
