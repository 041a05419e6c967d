"""The broker's doors and their limits, how topics come to be, and logging."""

import re
from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from icestream.config.fields import Allowed, Secret, Section, Unit, refuse
from icestream.model.enums import AckLevel
from icestream.model.units import GIB, KIB, MIB, TIB

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
    default_ack: AckLevel = Field(
        default=AckLevel.DISK,
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


# --------------------
# Who may come in.


MIN_TOKEN_LENGTH = 8
_TOKEN = re.compile(r"[!-~]+")
"""What a header can carry as it is."""
_NAMESPACE = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}", re.ASCII)


class AuthSettings(Section):
    """Tokens, and whose they are. Used by every door."""

    tokens: Secret = Field(
        default=None,
        description="Who may come in: `acme=TOKEN globex=TOKEN`, separated by white space or commas. Each token is "
        "for one namespace, which may have several; one of `*` is for everything. Unset, no token is needed.",
    )

    @property
    def token_pairs(self) -> list[tuple[str, str]]:
        """Namespaces, or `*`, and tokens."""
        text = self.tokens.get_secret_value() if self.tokens is not None else ""
        pairs = [entry.partition("=") for entry in re.split(r"[\s,]+", text) if entry]
        return [(namespace, token) for namespace, _, token in pairs]

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_not_unset(cls, values: Any) -> Any:
        """A variable that somebody forgot to set must not open every door."""
        if isinstance(values, dict) and values.get("tokens") == "":
            refuse("tokens", "is empty: leave it out where anybody may do everything")
        return values

    @model_validator(mode="after")
    def _tokens_can_be_told_apart(self) -> Self:
        pairs = self.token_pairs
        if self.tokens is not None and not pairs:
            refuse("tokens", "names no token: leave it out where anybody may do everything")
        if any(not namespace or len(token) < MIN_TOKEN_LENGTH for namespace, token in pairs):
            refuse("tokens", f"takes entries such as acme=TOKEN, with tokens of {MIN_TOKEN_LENGTH} characters or more")
        if not all(_NAMESPACE.fullmatch(namespace) for namespace, _ in pairs):
            refuse("tokens", "has an entry for what is no namespace: letters, digits and _ - . after the first, or *")
        if not all(_TOKEN.fullmatch(token) for _, token in pairs):
            refuse("tokens", "has a token with other characters than those of ASCII that can be seen")
        if len({token for _, token in pairs}) < len(pairs):
            refuse("tokens", "has the same token twice")
        return self


# --------------------
# What subscriptions may hold, and how they keep their progress.


class SubscriptionSettings(Section):
    """Limits of subscriptions and their consumers. Used by the subscription engine."""

    session_timeout_ms: int = Field(
        default=30_000,
        ge=100,
        le=86_400_000,
        description="A consumer that is silent for so long is disconnected, and what it holds goes to others.",
    )
    progress_interval_ms: int = Field(
        default=1_000,
        ge=1,
        le=3_600_000,
        description="A subscription's progress is written at most once in this time.",
    )
    max_unacknowledged_messages: Annotated[int, Unit("messages")] = Field(
        default=1_000_000,
        ge=1,
        le=4_000_000,
        description="How far a subscription's deliveries may be ahead of its oldest unacknowledged message.",
    )
    max_buffer_bytes: int = Field(
        default=8 * MIB,
        ge=64 * KIB,
        le=GIB,
        description="Most bytes that a subscription reads ahead of its consumers; one published batch always fits.",
    )
    max_subscriptions: Annotated[int, Unit("subscriptions")] = Field(
        default=10_000, ge=1, le=1_000_000, description="Most subscriptions of all topics; one more is refused."
    )
    max_consumers: Annotated[int, Unit("consumers")] = Field(
        default=1_000, ge=1, le=4_000, description="Most consumers of one subscription; one more is refused."
    )
    max_dispatch_delay_ms: int = Field(
        default=100,
        ge=0,
        le=10_000,
        description="With many subscriptions on a topic each lets new messages collect, at most for this long; with "
        "few there is no delay.",
    )


# --------------------
# What SQL over topics may use of the machine.


class QuerySettings(Section):
    """Limits of SQL queries. Used by the query engine, which runs in the broker."""

    max_memory_mb: int = Field(
        default=512, ge=16, le=1_048_576, description="Most memory of one query; one that needs more fails."
    )
    timeout_ms: int = Field(
        default=60_000,
        ge=1,
        le=86_400_000,
        description="A query that takes longer, the delivery of its result included, is ended.",
    )
    max_queries: Annotated[int, Unit("queries")] = Field(
        default=4, ge=1, le=1_000, description="Most queries at once; one more is refused, and may be tried again."
    )
    max_result_rows: Annotated[int, Unit("rows")] = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Most rows of an answer over HTTP; over Flight there is no limit.",
    )
    max_result_bytes: int = Field(
        default=16 * MIB,
        ge=KIB,
        le=GIB,
        description="About the most bytes of Arrow that become the rows of an answer over HTTP.",
    )
