"""`Client`: the object that applications begin with."""

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.admin import (
    Admin,
    CloudCalls,
    SqlCalls,
    Start,
    SubscriptionAdmin,
    position_of,
    subscription_fields,
)
from icestream.client.consumer import Consumer
from icestream.client.endpoint import BrokerEndpoint
from icestream.client.pipeline import PipelineCalls
from icestream.client.producer import Producer, wait_committed
from icestream.client.publisher import Outbox
from icestream.client.subscription import Subscription
from icestream.client.transport import Connection, PublishTransport
from icestream.model.errors import ClosedError, IcestreamError, InvalidRequestError, OffsetOutOfRangeError
from icestream.model.messages import decode_schema, encode_schema
from icestream.model.names import DEFAULT_URL, TopicName, check_producer
from icestream.model.offsets import StartPosition
from icestream.model.units import MIB

MAX_IN_FLIGHT = 8
"""Per producer. The broker recognises the last 16 batches of a producer, so a repeated batch is always among them."""

_CLOSE_POLL_S = 0.05
_BATCH_HEADROOM_BYTES = 1024
"""Arrow's header and padding of a batch, which count towards the broker's limit."""


class Client(Admin, SubscriptionAdmin, PipelineCalls, CloudCalls, SqlCalls):
    """Talks to one broker: `Client("grpc://host:port")`, or `Client(endpoint)` with a `BrokerEndpoint`.

    One connection, and two threads for all producers of one Arrow schema. Safe to use from several threads; not across
    a fork. `token` is needed where the broker uses tokens; the default is ICESTREAM_TOKEN. `tls` is a file of CA
    certificates, or its bytes, for `grpc+tls://…`. An endpoint has both already. `timeout` (seconds) bounds
    administrative calls.
    """

    def __init__(
        self,
        url: str | BrokerEndpoint = DEFAULT_URL,
        *,
        token: str | None = None,
        tls: str | Path | bytes | None = None,
        timeout: float = 30.0,
    ) -> None:
        if isinstance(url, BrokerEndpoint):
            if token is not None or tls is not None:
                raise InvalidRequestError(
                    "token and tls are part of the endpoint", operation="connect", remedy="give them to BrokerEndpoint"
                )
            endpoint = url
        else:
            endpoint = BrokerEndpoint(url, token=token, tls=tls)
        self._connection = Connection(endpoint, timeout_s=timeout)
        self._lock = threading.Lock()
        self._transports: dict[bytes, PublishTransport] = {}
        self._producers: set[Producer] = set()
        self._consumers: list[Consumer] = []
        self._subscriptions: set[Subscription] = set()
        self._timeout_s = timeout

    @property
    def url(self) -> str:
        return self._connection.url

    @property
    def endpoint(self) -> BrokerEndpoint:
        """How this client reaches its broker, for another client or process that connects in the same way."""
        return self._connection.endpoint

    # ---- publishing

    def producer(
        self,
        topic: str | TopicName,
        *,
        name: str | None = None,
        schema: pa.Schema | None = None,
        ack: str | None = None,
        linger_ms: float = 0,
        max_batch_bytes: int = MIB,
        max_batch_messages: int = 10_000,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_buffer_bytes: int = 64 * MIB,
        retry_timeout: float | None = 60.0,
        block_timeout: float | None = 60.0,
        next_sequence: int = 0,
        exclusive: bool = True,
    ) -> Producer:
        """Open a producer.

        `name`: a producer with a given name continues its numbering when it is opened again. The producer that was
        opened last has the name, here or elsewhere: messages of earlier ones are refused with `ProducerFencedError`.
        Without `exclusive`, several producers may send the same messages under the same numbers; each number is stored
        once. `next_sequence`: where a producer with a given name goes on if the broker does not remember it.
        `linger_ms`: how long a batch waits for more messages. With 0 the first message is sent at once, and messages
        collect only while an acknowledgement is awaited. `max_in_flight`: batches sent and not acknowledged.
        `max_buffer_bytes`: bytes of messages not acknowledged; beyond it `send` waits, at most `block_timeout` seconds.
        `retry_timeout`: seconds without any success after which waiting messages fail; None tries forever.
        """
        text = str(TopicName.parse(topic))
        if not 1 <= max_in_flight <= MAX_IN_FLIGHT:
            raise InvalidRequestError(
                f"max_in_flight is 1 to {MAX_IN_FLIGHT}, not {max_in_flight}", operation="open producer"
            )
        if linger_ms < 0:
            raise InvalidRequestError(f"linger_ms is 0 or more, not {linger_ms}", operation="open producer")
        limits = {
            "max_batch_bytes": max_batch_bytes,
            "max_batch_messages": max_batch_messages,
            "max_buffer_bytes": max_buffer_bytes,
        }
        for limit_name, value in limits.items():
            if value < 1:
                raise InvalidRequestError(f"{limit_name} is 1 or more, not {value}", operation="open producer")
        chosen = _unique_name() if name is None else check_producer(name)
        is_alone = name is not None and exclusive
        if is_alone and any((other.topic, other.name) == (text, name) for other in tuple(self._producers)):
            # The broker would refuse the messages of the first one, with an error that does not say why.
            raise InvalidRequestError(
                f"this client has a producer {name!r} open",
                operation="open producer",
                place=text,
                remedy="close it first, use it from both places, or choose another name",
            )
        session = secrets.randbits(62) + 1 if is_alone else 0
        opened = self._connection.action(
            "open_producer",
            {
                "topic": text,
                "producer": chosen,
                "schema": None if schema is None else encode_schema(schema),
                "session": session,
            },
        )
        topic_schema = decode_schema(opened["schema"])
        limit = int(opened["max_batch_bytes"])
        broker_batch_bytes = limit - min(_BATCH_HEADROOM_BYTES, limit // 4)
        transport = self._transport(topic_schema)
        outbox = Outbox(
            text,
            transport.lock,
            name=chosen,
            new_name=_unique_name if name is None else None,
            next_sequence=max(int(opened["next_sequence"]), next_sequence),
            session=session,
            ack=ack,
            max_in_flight=max_in_flight,
            linger_s=linger_ms / 1000,
            retry_timeout_s=retry_timeout,
            max_batch_bytes=min(max_batch_bytes, broker_batch_bytes),
            max_batch_messages=max_batch_messages,
            max_message_bytes=min(int(opened["max_message_bytes"]), broker_batch_bytes),
            max_buffer_bytes=max_buffer_bytes,
        )
        producer = Producer(
            transport,
            outbox,
            schema=topic_schema,
            broker_batch_bytes=broker_batch_bytes,
            block_timeout=block_timeout,
            wait_committed=partial(wait_committed, self._connection, text),
            on_close=self._producers.discard,
        )
        self._producers.add(producer)
        return producer

    def _transport(self, schema: pa.Schema) -> PublishTransport:
        """Return the transport of the producers with this schema; it is opened with the first of them."""
        key = schema.serialize().to_pybytes()
        with self._lock:
            self._connection.check_open("open producer")
            transport = self._transports.get(key)
            if transport is None:
                transport = self._transports[key] = PublishTransport(self._connection, schema)
            return transport

    # ---- reading

    def read(
        self,
        topic: str | TopicName,
        start: Start = "earliest",
        end: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> pa.Table:
        """Return the messages from `start` to before `end`, or to the durable end if that is lower.

        They come from the broker's memory, its log, the cloud or the table. `columns`: only these. `where`: only
        messages that meet this SQL condition, such as `key = 'a' and offset > 10`.
        """
        ticket: dict[str, Any] = {"topic": str(TopicName.parse(topic)), "start": position_of(start).to_json()}
        chosen = {"end": end, "columns": None if columns is None else list(columns), "filter": where}
        ticket |= {name: value for name, value in chosen.items() if value is not None}
        problem: IcestreamError
        try:
            return self._connection.get(ticket).read_all()
        except IcestreamError as error:
            problem = error
        except (fl.FlightError, pa.ArrowException) as error:
            problem = self._connection.typed(error, "read")
        durable_end = problem.details.get("durable_end")
        if isinstance(problem, OffsetOutOfRangeError) and isinstance(durable_end, int) and (end or 0) > durable_end:
            return self.read(topic, start, durable_end, columns=columns, where=where)
        raise problem

    def consume(
        self,
        topic: str | TopicName,
        start: Start = "earliest",
        *,
        end: int | None = None,
        follow: bool = False,
        max_messages: int | None = None,
        where: str | None = None,
        committed: bool = False,
    ) -> Consumer:
        """Read a topic as a stream. The broker keeps no progress: for that, use `subscribe`.

        `where`: an SQL condition on columns; only messages that meet it come. `committed`: read the table alone, up to
        its committed offset. With `follow` the consumer waits for new messages, and survives a restart of the broker:
        reading goes on at the next offset, without gap or duplicate.
        """
        self._connection.check_open("consume")
        position = position_of(start)
        text = str(TopicName.parse(topic))
        if follow and position.kind == "latest":
            # The present end as a number: `latest` after a lost connection would leave a gap.
            position = StartPosition.offset(self.describe_topic(text).durable_end)
        consumer = Consumer(
            self._connection,
            text,
            position,
            end=end,
            follow=follow,
            max_messages=max_messages,
            where=where,
            committed=committed,
        )
        with self._lock:
            self._consumers = [other for other in self._consumers if not other.ended]
            self._consumers.append(consumer)
        return consumer

    def subscribe(
        self,
        topic: str | TopicName,
        name: str,
        *,
        type: str | None = None,  # noqa: A002 - the word for it
        start: Start = "earliest",
        filter: str | None = None,  # noqa: A002 - the word for it
        ack_timeout: float | None = None,
        nack_delay: float | None = None,
        max_redeliveries: int | None = None,
        dead_letter_topic: str | TopicName | None = None,
        consumer: str | None = None,
        receiver_queue: int = 10_000,
        max_bytes: int = 8 * MIB,
        create: bool = True,
    ) -> Subscription:
        """Consume from a subscription. It keeps what was acknowledged, and is created if there is none.

        `type`: `exclusive` (the default of a new one), `shared`, `failover` or `key-shared`. `start`: where a new one
        begins. `filter`: an SQL condition on columns, such as `attributes['source'] = 'web'`. `ack_timeout`: seconds
        after which an unacknowledged message is delivered again; `nack_delay`: seconds after a `nack` (1).
        `max_redeliveries`: a message that failed more often goes to `dead_letter_topic`. An option that is not given
        stays unchanged; options of a subscription can be changed while it has no consumers.
        `consumer`: a name for statistics. At most `receiver_queue` messages and `max_bytes` wait here to be taken.
        After a lost connection the client connects again, and unacknowledged messages are delivered again.
        """
        if min(receiver_queue, max_bytes) < 1:
            raise InvalidRequestError("receiver_queue and max_bytes are 1 or more", operation="subscribe")
        request = subscription_fields(
            topic,
            name,
            start,
            type=type,
            filter=filter,
            ack_timeout=ack_timeout,
            nack_delay=nack_delay,
            max_redeliveries=max_redeliveries,
            dead_letter_topic=dead_letter_topic,
        )
        request |= {"consumer": consumer or _unique_name(), "instance": secrets.token_hex(16), "create": create}
        request |= {"max_messages": receiver_queue, "max_bytes": max_bytes}
        self._connection.check_open("subscribe")
        subscription = Subscription(
            self._connection, request, timeout_s=self._timeout_s, on_close=self._subscriptions.discard
        )
        self._subscriptions.add(subscription)
        return subscription

    # ---- the end

    def close(self, timeout: float = 5.0) -> None:
        """Close everything that this client has open.

        Messages in flight get up to `timeout` seconds if the broker is connected. Then the receipts of unacknowledged
        messages fail with ClosedError.
        """
        deadline = time.monotonic() + timeout
        producers = list(self._producers)
        waiting = [(producer, batch) for producer in producers for batch in producer.pending()]
        for owner, batch in waiting:
            while owner.connected and time.monotonic() < deadline and not batch.wait(_CLOSE_POLL_S):
                pass
        for producer in producers:
            with contextlib.suppress(IcestreamError):
                producer.close(timeout=0)
        for subscription in list(self._subscriptions):
            subscription.close(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._connection.close()
            transports, self._transports = list(self._transports.values()), {}
            consumers, self._consumers = self._consumers, []
        for transport in transports:
            transport.close(ClosedError("the client was closed", operation="publish"))
        for consumer in consumers:
            consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _unique_name() -> str:
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(6)}"
