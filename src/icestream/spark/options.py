"""The options of `spark.read` and `spark.readStream`. All are checked when a DataFrame is made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from icestream.client import BrokerEndpoint, Client
from icestream.model.errors import InvalidRequestError
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition

if TYPE_CHECKING:
    from icestream.config import Settings

OPERATION = "spark source"
DEFAULT_PARTITION_BYTES = 64 * 1024 * 1024
MAX_PARTITIONS = 100_000

_NAMES = (
    "broker",
    "topic",
    "start",
    "end",
    "columns",
    "maxMessagesPerTrigger",
    "partitionBytes",
    "minPartitions",
    "token",
    "tls",
    "config",
)
_BY_LOWER_CASE = {name.lower(): name for name in _NAMES}
_MAX_NUMBER = 1 << 62

EARLIEST = StartPosition.earliest()


@dataclass(frozen=True)
class SourceOptions:
    endpoint: BrokerEndpoint
    topic: TopicName
    start: StartPosition = EARLIEST
    end: int | None = None
    """Where a batch ends. None: at what is durable when the query is planned."""
    columns: tuple[str, ...] | None = None
    max_messages_per_trigger: int | None = None
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    min_partitions: int = 1
    settings: "Settings | None" = field(default=None, repr=False)
    """How to reach the table, if history is read from its files."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Read the options. Spark ignores the case of their names."""
        texts = {name.lower(): text for name, text in given.items()}
        if unknown := sorted(texts.keys() - _BY_LOWER_CASE.keys()):
            raise _wrong(f"there is no option {', '.join(map(repr, unknown))}", f"options are {', '.join(_NAMES)}")
        for needed in ("broker", "topic"):
            if not texts.get(needed):
                raise _wrong(f"the option {needed!r} is missing", "name the broker (grpc://host:port) and the topic")
        end = texts.get("end", "latest")
        columns = tuple(name.strip() for name in texts["columns"].split(",")) if "columns" in texts else None
        return cls(
            endpoint=BrokerEndpoint(texts["broker"], token=texts.get("token"), tls=texts.get("tls")),
            topic=TopicName.parse(texts["topic"]),
            start=StartPosition.parse(texts.get("start", "earliest")),
            end=None if end == "latest" else _number("end", end, least=0),
            columns=columns,
            max_messages_per_trigger=_optional_number(texts, "maxMessagesPerTrigger"),
            partition_bytes=_optional_number(texts, "partitionBytes") or DEFAULT_PARTITION_BYTES,
            min_partitions=_optional_number(texts, "minPartitions", most=MAX_PARTITIONS) or 1,
            settings=_load(texts["config"]) if "config" in texts else None,
        )

    def connect(self) -> Client:
        return Client(self.endpoint)

    def for_batch(self) -> Self:
        if self.max_messages_per_trigger is not None:
            raise _wrong("maxMessagesPerTrigger is an option of streams only", "bound a batch with start and end")
        return self

    def for_stream(self) -> Self:
        if self.end is not None:
            raise _wrong("end is an option of batches only", "bound the steps of a stream with maxMessagesPerTrigger")
        return self


def _load(path: str) -> "Settings":
    from icestream.config import load_settings  # noqa: PLC0415 - a light install does not have it

    return load_settings(Path(path))


def _optional_number(texts: Mapping[str, str], name: str, *, most: int = _MAX_NUMBER) -> int | None:
    text = texts.get(name.lower())
    return None if text is None else _number(name, text, least=1, most=most)


def _number(name: str, text: str, *, least: int, most: int = _MAX_NUMBER) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not least <= number <= most:
        raise _wrong(f"the option {name} is a whole number from {least} to {most}, not {text!r:.80}", "")
    return number


def _wrong(problem: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(problem, operation=OPERATION, remedy=remedy)
