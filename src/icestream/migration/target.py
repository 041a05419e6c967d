"""The topic that files go into. A missing topic of telemetry is created."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

import pyarrow as pa

from icestream.client import Client
from icestream.config import Settings
from icestream.model.enums import StorageKind
from icestream.model.errors import InvalidRequestError, TopicNotFoundError
from icestream.model.messages import MESSAGE_SCHEMA
from icestream.model.names import TopicName
from icestream.telemetry import Signal, topic_schema
from icestream.telemetry.ingest import options_of
from icestream.telemetry.topics import SORT_BY, partition_by, topic_name

_OPERATION = "find topic"
_FOLDERS = {Signal.TRACES: ("traces", "spans"), Signal.LOGS: ("logs",), Signal.METRICS: ("metrics",)}
_OWN_COLUMNS = {
    signal: set(topic_schema(signal).names)
    - {name for other in Signal if other is not signal for name in topic_schema(other).names}
    for signal in Signal
}
"""For each signal, the columns that no other signal has."""


@dataclass(frozen=True)
class MigrationTarget:
    topic: TopicName
    schema: pa.Schema
    """The columns of what is published."""
    signal: Signal | None
    exists: bool
    has_table: bool = True

    @property
    def is_plain(self) -> bool:
        return bool(self.schema.equals(MESSAGE_SCHEMA))


def guess_signal(schema: pa.Schema, places: Iterable[str]) -> tuple[Signal, str]:
    """Return the signal of a file's rows, and what it was guessed from. Raise if nothing says so."""
    scores = {signal: len(_OWN_COLUMNS[signal] & set(schema.names)) for signal in Signal}
    best = max(scores.values())
    likely = [signal for signal in Signal if scores[signal] == best]
    if best and len(likely) == 1:
        named = [name for name in schema.names if name in _OWN_COLUMNS[likely[0]]]
        return likely[0], f"columns {', '.join(named[:3])}"
    for place in places:
        for part in reversed(PurePosixPath(place).parts):
            for signal, names in _FOLDERS.items():
                if any(name in part.lower() for name in names):
                    return signal, f"the folder {part}"
    raise InvalidRequestError(
        "neither columns nor folders say which signal this is",
        operation=_OPERATION,
        remedy="give --signal traces, logs or metrics; or --topic for rows that are not telemetry",
    )


def telemetry_target(
    client: Client, tenant: str, dataset: str | None, signal: Signal, settings: Settings
) -> MigrationTarget:
    """Return the tenant's topic of a signal. `ensure` creates a missing one, as the OTLP receivers do."""
    name, wanted = topic_name(tenant, dataset, signal), topic_schema(signal, options_of(settings))
    try:
        described = client.describe_topic(name)
    except TopicNotFoundError:
        return MigrationTarget(name, wanted, signal, exists=False)
    found, base = described.schema, topic_schema(signal)
    if found is None or not all(field.name in found.names and found.field(field.name).equals(field) for field in base):
        raise InvalidRequestError(
            f"the topic has other columns than {signal} have",
            operation=_OPERATION,
            place=str(name),
            remedy="name it with --topic, or use another --dataset",
        )
    return MigrationTarget(name, found, signal, exists=True, has_table=described.storage == StorageKind.TABLE)


def plain_target(client: Client, topic: str) -> MigrationTarget:
    """Return an existing topic."""
    name = TopicName.parse(topic)
    try:
        described = client.describe_topic(name)
    except TopicNotFoundError as error:
        raise TopicNotFoundError(
            "there is no such topic",
            operation=_OPERATION,
            place=str(name),
            remedy="create it first: `icestream topic create NAME --schema FILE.parquet --codec arrow`",
        ) from error
    schema = MESSAGE_SCHEMA if described.schema is None else described.schema
    return MigrationTarget(name, schema, None, exists=True, has_table=described.storage == StorageKind.TABLE)


def ensure(client: Client, target: MigrationTarget, settings: Settings) -> None:
    if target.exists or target.signal is None:
        return
    client.create_topic(
        target.topic,
        target.schema,
        partition_by=partition_by(settings.telemetry),
        sort_by=SORT_BY[target.signal],
        if_not_exists=True,
    )
