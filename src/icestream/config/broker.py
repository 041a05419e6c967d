"""The broker: ports and limits, authentication, topics, subscriptions, SQL queries, logging."""

import re
from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from icestream.config.fields import Allowed, Secret, Section, Unit, refuse
from icestream.model.enums import AckLevel
from icestream.model.units import GIB, KIB, MIB, TIB

_PORT = Allowed("a port up to 65535; 0 takes a free port, a negative number turns the protocol off")
_MAX_PORT = 65_535
_DOORS = ("flight_port", "http_port", "socket_port", "otlp_grpc_port", "otlp_http_port")
"""Doors that exist, so that their ports must differ. No door uses `danube_port` yet."""

Port = Annotated[int, _PORT, Field(ge=-_MAX_PORT, le=_MAX_PORT)]


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class ServerSettings(Section):
    """Where the broker listens, and its limits. Used by the broker process."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address that all ports bind to.")
    flight_port: Port = Field(default=8815, description="Arrow Flight, the native protocol.")
    http_port: Port = Field(default=8816, description="HTTP: health, metrics and API.")
    socket_port: Port = Field(
        default=0,
        description="Small messages of the native clients, with less delay than Flight. Clients learn the port from "
        "the Flight door, and use Flight where they cannot reach it: set it where a firewall needs to know it.",
    )
    danube_port: Port = Field(default=6650, description="Danube's gRPC protocol. No door uses it yet.")
    otlp_grpc_port: Port = Field(default=4317, description="OpenTelemetry over gRPC.")
    otlp_http_port: Port = Field(default=4318, description="OpenTelemetry over HTTP.")
    max_message_bytes: int = Field(
        default=16 * MIB,
        ge=1,
        le=GIB,
        description="Largest message: payload, key and attributes together, plus about 24 bytes.",
    )
    max_batch_bytes: int = Field(
        default=64 * MIB, ge=1, le=GIB, description="Largest published batch. At least `server.max_message_bytes`."
    )
    max_topics: Annotated[int, Unit("topics")] = Field(
        default=10_000, ge=1, le=10_000_000, description="Most topics of the broker; creating one more is refused."
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
        description="Origins of other web pages that may open event streams and WebSockets, separated by commas: such "
        "as `https://shop.example`, or `null` for pages opened as files. The broker's own pages always may.",
    )
    shutdown_timeout_ms: int = Field(
        default=30_000,
        ge=0,
        le=3_600_000,
        description="How long a graceful stop waits for open streams before it closes them.",
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
    """Defaults of new topics. Used by the broker process."""

    auto_create: bool = Field(default=True, description="Create a topic at its first publish.")
    default_ack: AckLevel = Field(
        default=AckLevel.DISK,
        description="When a publish is acknowledged: when the broker has it in memory, when it is synced to disk, or "
        "when it is in the table.",
    )


class LogSettings(Section):
    """Logging to stderr. Used by every process."""

    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        default="info", description="Lowest severity that is logged."
    )
    format: Annotated[Literal["console", "json"], BeforeValidator(_lower)] = Field(
        default="console", description="Text for people, or one JSON object per line for machines."
    )


MIN_TOKEN_LENGTH = 8
_TOKEN = re.compile(r"[!-~]+")
"""The characters that a header can carry."""
_NAMESPACE = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}", re.ASCII)


class AuthSettings(Section):
    """Tokens and their namespaces. Used by every protocol."""

    tokens: Secret = Field(
        default=None,
        description="Access tokens: `acme=TOKEN globex=TOKEN`, separated by white space or commas. Each token is for "
        "one namespace; a namespace may have several. A token of `*` is for all namespaces. Unset, there is no "
        "authentication: every client has full access.",
    )

    @property
    def token_pairs(self) -> list[tuple[str, str]]:
        """Pairs of a namespace, or `*`, and a token."""
        text = self.tokens.get_secret_value() if self.tokens is not None else ""
        pairs = [entry.partition("=") for entry in re.split(r"[\s,]+", text) if entry]
        return [(namespace, token) for namespace, _, token in pairs]

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_not_unset(cls, values: Any) -> Any:
        """Refuse empty text: an environment variable that was forgotten must not turn authentication off."""
        if isinstance(values, dict) and values.get("tokens") == "":
            refuse("tokens", "is empty: leave it out for no authentication")
        return values

    @model_validator(mode="after")
    def _tokens_can_be_told_apart(self) -> Self:
        pairs = self.token_pairs
        if self.tokens is not None and not pairs:
            refuse("tokens", "names no token: leave it out for no authentication")
        if any(not namespace or len(token) < MIN_TOKEN_LENGTH for namespace, token in pairs):
            refuse("tokens", f"takes entries such as acme=TOKEN, with tokens of {MIN_TOKEN_LENGTH} characters or more")
        if not all(_NAMESPACE.fullmatch(namespace) for namespace, _ in pairs):
            refuse(
                "tokens",
                "has an entry without a valid namespace: a letter or digit, then letters, digits and _ - . ; or *",
            )
        if not all(_TOKEN.fullmatch(token) for _, token in pairs):
            refuse("tokens", "has a token with a character other than visible ASCII")
        if len({token for _, token in pairs}) < len(pairs):
            refuse("tokens", "has the same token twice")
        return self


class SubscriptionSettings(Section):
    """Limits of subscriptions and their consumers. Used by the subscription engine."""

    session_timeout_ms: int = Field(
        default=30_000,
        ge=100,
        le=86_400_000,
        description="A consumer that is silent for this long is disconnected; its messages go to other consumers.",
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
        description="With many subscriptions on a topic, each collects new messages for at most this long; with few "
        "there is no delay.",
    )


class QuerySettings(Section):
    """Limits of SQL queries. Used by the query engine, which runs in the broker."""

    max_memory_mb: int = Field(
        default=512, ge=16, le=1_048_576, description="Most memory of one query; a query that needs more fails."
    )
    timeout_ms: int = Field(
        default=60_000,
        ge=1,
        le=86_400_000,
        description="A query that takes longer, including the delivery of its result, is stopped.",
    )
    max_queries: Annotated[int, Unit("queries")] = Field(
        default=4, ge=1, le=1_000, description="Most queries at once; one more is refused with a retryable error."
    )
    max_result_rows: Annotated[int, Unit("rows")] = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Most rows of a response over HTTP; over Flight there is no limit.",
    )
    max_result_bytes: int = Field(
        default=16 * MIB,
        ge=KIB,
        le=GIB,
        description="About the most bytes of Arrow that become the rows of a response over HTTP.",
    )
