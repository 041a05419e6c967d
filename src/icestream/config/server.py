"""The broker's doors and their limits, how topics come to be, and logging."""

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from icestream.config.fields import GIB, MIB, TIB, Allowed, Section, Unit, refuse

_PORT = Allowed("a port up to 65535; 0 takes a free one, a negative number leaves the door shut")
_MAX_PORT = 65_535
_DOORS = ("flight_port", "http_port", "danube_port", "otlp_grpc_port", "otlp_http_port")

Port = Annotated[int, _PORT, Field(ge=-_MAX_PORT, le=_MAX_PORT)]


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class ServerSettings(Section):
    """Where the broker listens and how much it takes on. Used by the broker process."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address that all doors bind to.")
    flight_port: Port = Field(default=8815, description="Arrow Flight, the native protocol.")
    http_port: Port = Field(default=8816, description="HTTP: health, metrics, admin API and dashboard.")
    danube_port: Port = Field(default=6650, description="Danube's gRPC protocol.")
    otlp_grpc_port: Port = Field(default=4317, description="OpenTelemetry over gRPC.")
    otlp_http_port: Port = Field(default=4318, description="OpenTelemetry over HTTP.")
    max_message_bytes: int = Field(
        default=16 * MIB,
        ge=1,
        le=GIB,
        description="Largest message: payload, key and attributes together, and some 24 bytes around them.",
    )
    max_batch_bytes: int = Field(
        default=64 * MIB, ge=1, le=GIB, description="Largest published batch. At least `server.max_message_bytes`."
    )
    max_topics: Annotated[int, Unit("topics")] = Field(
        default=10_000, ge=1, le=10_000_000, description="Most topics the broker keeps; creating one more is refused."
    )
    max_connections: Annotated[int, Unit("streams")] = Field(
        default=1_000,
        ge=1,
        le=1_000_000,
        description="Most streams open at once; one more is refused with a retryable error.",
    )
    max_in_flight_bytes: int = Field(
        default=256 * MIB,
        ge=1,
        le=TIB,
        description="Most bytes of received batches that wait for their acknowledgement, over all streams. "
        "At least `server.max_batch_bytes`.",
    )
    allowed_origins: str = Field(
        default="",
        description="Origins of web pages, separated by commas, that may open event streams and WebSockets besides "
        "pages of the HTTP door itself: such as `https://shop.example`, or `null` for pages opened as files.",
    )
    shutdown_timeout_ms: int = Field(
        default=30_000,
        ge=0,
        le=3_600_000,
        description="How long a graceful stop waits for open streams before it cuts them.",
    )

    @model_validator(mode="after")
    def _limits_nest(self) -> Self:
        if self.max_message_bytes > self.max_batch_bytes:
            refuse("max_message_bytes", f"must not exceed server.max_batch_bytes, which is {self.max_batch_bytes}")
        if self.max_batch_bytes > self.max_in_flight_bytes:
            refuse(
                "max_batch_bytes", f"must not exceed server.max_in_flight_bytes, which is {self.max_in_flight_bytes}"
            )
        return self

    @model_validator(mode="after")
    def _doors_differ(self) -> Self:
        ports = {door: int(getattr(self, door)) for door in _DOORS}
        counts = Counter(port for port in ports.values() if port > 0)
        for port, count in counts.items():
            if count > 1:
                first, second, *_ = (door for door in _DOORS if ports[door] == port)
                refuse(second, f"must differ from server.{first}, which is the same port")
        return self


class TopicSettings(Section):
    """What a topic gets when nobody said otherwise. Used by the broker process."""

    auto_create: bool = Field(default=True, description="Create a topic at its first publish or subscription.")
    default_ack: Literal["memory", "disk", "table"] = Field(
        default="disk",
        description="When a publish is acknowledged: once the broker has it in memory, once it is synced to disk, or "
        "once it is in the table.",
    )


class LogSettings(Section):
    """What the processes say about themselves, on stderr. Used by every process."""

    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        default="info", description="Least severe event that is written."
    )
    format: Annotated[Literal["console", "json"], BeforeValidator(_lower)] = Field(
        default="console", description="For people, or one JSON object a line for machines."
    )
