"""Publishing and reading over HTTP."""

import asyncio
import base64
import contextlib
import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from icestream.model.enums import AckLevel
from icestream.model.errors import ClosedError, IcestreamError, InvalidMessageError, InvalidRequestError
from icestream.model.messages import (
    MESSAGE_SCHEMA,
    STREAM_SCHEMA,
    Message,
    end_offset,
    message_batch,
    messages_of,
    slice_from,
)
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.server.http.errors import NotAcceptableError, json_response
from icestream.server.http.models import NewMessage, PublishBody, PublishQuery, PublishReceipt, ReadMessages, ReadQuery
from icestream.server.http.requests import (
    ARROW_STREAM,
    JSON,
    HttpOperation,
    ResponseSpec,
    bounded_body,
    check_media_type,
    parse_json,
    parse_query,
    read_stream,
    refuse_query,
    write_stream,
)
from icestream.server.http.topics import TOPIC_PATH, topic_name
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage, PublishItem, Topic
from icestream.wal import Append, Log, LogState

# A bounded range of a topic, and its messages as JSON.


_OTHER = re.compile(r"(earliest|latest|[0-9]{1,18}|snapshot:[0-9]{1,19}|tag:\S+)$", re.ASCII)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def parse_start(text: str) -> StartPosition:
    """As on the command line, but a time has to say its zone."""
    if _OTHER.match(text):
        return StartPosition.parse(text)
    try:
        if _RFC3339.fullmatch(text):
            return StartPosition.parse(text.upper())
    except InvalidRequestError:
        pass  # such as the 30th of February
    raise InvalidRequestError(
        f"start: {text!r} is not a start position",
        operation="read",
        remedy="use earliest, latest, an offset, an RFC 3339 time, in which + is written %2B, snapshot:ID or tag:NAME",
    )


class MessageRange(NamedTuple):
    schema: pa.Schema
    batches: list[pa.RecordBatch]
    next_offset: int
    durable_end: int


def read_range(
    storage: IcebergStorage, topic: Topic, offset: int, *, max_messages: int, max_bytes: int
) -> MessageRange:
    """Messages from an offset on: at most so many, and about so many bytes, but at least one if there is one."""
    if topic.log.state is LogState.CLOSED:
        storage.topic(topic.name)  # raises if it was deleted meanwhile
        raise ClosedError("the topic's log is closed", operation="read", place=str(topic.name))
    reader = topic.reader(StartPosition.offset(offset))
    end, room = offset + max_messages, max_bytes
    found: list[pa.RecordBatch] = []
    try:
        while offset < end and room > 0:
            batches = reader.read(room)
            if not batches:
                break
            for batch in batches:
                part = _fitting(slice_from(batch, 0, end), room, at_least=0 if found else 1)
                if part.num_rows:
                    found.append(part)
                    offset = end_offset(part)
                    room -= part.nbytes
                if part.num_rows < batch.num_rows:
                    room = 0
                    break
            else:
                offset = min(end, reader.offset)  # past messages that a repair gave up, too
    finally:
        reader.close()
    return MessageRange(topic.stream_schema, found, offset, topic.log.durable_end)


def _fitting(batch: pa.RecordBatch, max_bytes: int, *, at_least: int) -> pa.RecordBatch:
    """The first rows that fit."""
    if batch.nbytes <= max_bytes or batch.num_rows <= at_least:
        return batch
    rows = bisect_right(range(1, batch.num_rows + 1), max_bytes, key=lambda count: batch.slice(0, count).nbytes)
    return batch.slice(0, max(rows, at_least))


def range_as_json(found: MessageRange) -> dict[str, Any]:
    return {
        "messages": [message_as_json(message) for batch in found.batches for message in messages_of(batch)],
        "next_offset": found.next_offset,
        "durable_end": found.durable_end,
    }


def message_as_json(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "offset": message.offset,
        "publish_time": message.publish_time.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "producer": message.producer,
        "sequence": message.sequence,
        "attributes": message.attributes,
    }
    if message.key is not None:
        _put_bytes(fields, "key", message.key)
    _put_bytes(fields, "payload", message.payload)
    return fields


def _put_bytes(fields: dict[str, Any], name: str, value: bytes) -> None:
    """As text where it is text."""
    try:
        fields[name] = value.decode()
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = base64.b64encode(value).decode()


# Waiting for new messages without holding a thread.


Ends: TypeAlias = Sequence["asyncio.Future[Any]"]
"""What ends all waiting once one of them is done."""


@contextlib.asynccontextmanager
async def ends_of(request: Request, closing: asyncio.Event) -> AsyncIterator[Ends]:
    """Yield two tasks: the first ends when the client disconnects, the second when the door closes.

    The request's body must have been read.
    """
    ends = [asyncio.create_task(_gone(request)), asyncio.create_task(_set(closing))]
    try:
        yield ends
    finally:
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)


async def wait_past(log: Log, offset: int, seconds: float, *, ends: Ends) -> None:
    """Return when the log is durable past an offset or closed, the time is up, or one of the ends is reached.

    The log wakes this from whichever thread commits; nothing is asked at intervals.
    """
    loop, moved = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the door's loop has ended; the commit must not hear of it
            loop.call_soon_threadsafe(moved.set)

    log.listeners.add(wake)
    try:
        async with asyncio.timeout(seconds):
            while log.durable_end <= offset and log.state is not LogState.CLOSED:
                await wait_for(moved, ends)
                if any(end.done() for end in ends):
                    return
    except TimeoutError:
        pass
    finally:
        log.listeners.discard(wake)


async def wait_for(event: asyncio.Event, ends: Ends, seconds: float | None = None) -> None:
    """Return when the event is set, which is then cleared, or one of the ends is reached, or the time is up."""
    wakes = asyncio.create_task(_set(event))
    try:
        await asyncio.wait([wakes, *ends], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        wakes.cancel()
    event.clear()


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _gone(request: Request) -> None:
    """Returns when the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# Published messages as JSON, made into an Arrow batch.


_OPERATION = "publish"


def batch_of(request: PublishBody) -> pa.RecordBatch:
    messages = request.messages
    payloads = [_payload(message, index) for index, message in enumerate(messages)]
    keys = [_key(message, index) for index, message in enumerate(messages)]
    attributes = [list(message.attributes.items()) if message.attributes else None for message in messages]
    return message_batch(payloads, keys if any(key is not None for key in keys) else None, attributes)


def check_producer_given(producer: str | None, sequence: int | None) -> tuple[str, int]:
    """Producer and sequence as the storage takes them; one is nothing without the other."""
    if (producer is None) != (sequence is None):
        missing = "sequence" if sequence is None else "producer"
        raise InvalidRequestError(f"{missing} is missing", operation=_OPERATION, remedy="give producer and sequence")
    if producer == "":
        raise InvalidRequestError("producer is empty", operation=_OPERATION, remedy="name it or leave it out")
    return producer or "", sequence or 0


def _payload(message: NewMessage, index: int) -> bytes:
    payload = _either(message.payload, message.payload_base64, "payload", index)
    if payload is None:
        raise InvalidMessageError(f"messages.{index} has no payload", operation=_OPERATION)
    return payload


def _key(message: NewMessage, index: int) -> bytes | None:
    return _either(message.key, message.key_base64, "key", index)


def _either(text: str | None, encoded: str | None, name: str, index: int) -> bytes | None:
    if encoded is None:
        return text.encode() if text is not None else None
    if text is not None:
        raise InvalidMessageError(f"messages.{index} has both {name} and {name}_base64", operation=_OPERATION)
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise InvalidMessageError(f"messages.{index}.{name}_base64: {error}", operation=_OPERATION) from None


_STREAM_COLUMNS = STREAM_SCHEMA.names
MESSAGES_PATH = f"{TOPIC_PATH}/messages"
NEXT_OFFSET_HEADER = "Icestream-Next-Offset"
DURABLE_END_HEADER = "Icestream-Durable-End"
_CLIENT_GONE = 499
"""What nginx calls a request whose client did not wait for the response."""


class MessagesApi:
    def __init__(self, storage: IcebergStorage, metrics: BrokerMetrics, closing: asyncio.Event) -> None:
        self._storage = storage
        self._metrics = metrics
        self._closing = closing

    def operations(self) -> list[HttpOperation]:
        return [
            HttpOperation(
                "POST",
                MESSAGES_PATH,
                "publish",
                "messages",
                "Publish messages",
                self.publish,
                {200: ResponseSpec("The messages are acknowledged.", {JSON: PublishReceipt})},
                query=PublishQuery,
                body={JSON: PublishBody, ARROW_STREAM: None},
                errors=(400, 404, 408, 409, 413, 415, 429, 503, 507),
                details="All messages of a request are stored together or not at all. A missing topic is created where "
                "`topics.auto_create` is on. The query's parameters go with Arrow bodies; JSON has them inside.",
            ),
            HttpOperation(
                "GET",
                MESSAGES_PATH,
                "read",
                "messages",
                "Read messages",
                self.read,
                {
                    200: ResponseSpec(
                        "Messages in offset order; none when there is nothing new.",
                        {JSON: ReadMessages, ARROW_STREAM: None},
                        {
                            NEXT_OFFSET_HEADER: "Where to read on.",
                            DURABLE_END_HEADER: "The offset after the topic's last durable message.",
                        },
                    )
                },
                query=ReadQuery,
                errors=(400, 404, 406, 416, 429, 503),
                details=f"Ask with `Accept: {ARROW_STREAM}` for Arrow, the only form of topics with their own schema.",
            ),
        ]

    # Publishing

    async def publish(self, request: Request) -> Response:
        started = perf_counter()
        try:
            published = await self._publish(request)
        except IcestreamError as error:
            self._metrics.refused(error.code)
            raise
        if published is None:
            return Response(status_code=_CLIENT_GONE)  # nobody reads it
        append, batch, snapshot_id = published
        if append.duplicate:
            self._metrics.duplicate()
        self._metrics.published(batch.num_rows, batch.nbytes, perf_counter() - started)
        return json_response(
            PublishReceipt(
                base_offset=append.base_offset,
                count=batch.num_rows,
                publish_time_us=append.publish_time_us,
                duplicate=append.duplicate,
                snapshot_id=snapshot_id,
            )
        )

    async def _publish(self, request: Request) -> tuple[Append, pa.RecordBatch, int | None] | None:
        """What was appended, and a snapshot that holds it where the acknowledgement is the table's.

        None if the client has disconnected before its messages were in the table.
        """
        name = topic_name(request)
        batch, options = await self._received(request)
        producer, sequence = check_producer_given(options.producer, options.sequence)
        acknowledged = asyncio.get_running_loop().create_future()

        def submit() -> tuple[Topic, AckLevel]:
            """Check the batch and queue it."""
            # Only messages can make a topic by themselves: a topic's own columns are for its creator to say.
            topic = self._storage.topic(name, create=batch.schema.equals(MESSAGE_SCHEMA))
            level = options.ack or topic.default_ack
            item = PublishItem(batch, _resolve(acknowledged), producer, sequence)
            self._storage.publishing.submit(topic, item, level=level, inline=False)
            return topic, level

        topic, level = await run_in_threadpool(submit)
        if level is AckLevel.TABLE:
            # The table may be far behind. A request whose client is gone must not hold its place until then.
            async with ends_of(request, self._closing) as (disconnected, _):
                await asyncio.wait([acknowledged, disconnected], return_when=asyncio.FIRST_COMPLETED)
            if not acknowledged.done():
                return None
        append = await acknowledged
        if append.error is not None:
            raise append.error
        return append, batch, topic.committed.snapshot_id if level is AckLevel.TABLE else None

    async def _received(self, request: Request) -> tuple[pa.RecordBatch, PublishBody | PublishQuery]:
        operation = "publish"
        kind = check_media_type(request, JSON, ARROW_STREAM, operation=operation)
        if kind == JSON:
            refuse_query(request, operation=operation)
        else:
            query = parse_query(request, PublishQuery, operation=operation)
        max_bytes, budget = self._storage.settings.server.max_batch_bytes, self._storage.budget
        async with bounded_body(request, max_bytes=max_bytes, budget=budget, operation=operation) as body:
            if kind == ARROW_STREAM:
                return await run_in_threadpool(read_stream, body, operation=operation), query
            parsed = await run_in_threadpool(parse_json, body, PublishBody, operation=operation)
            return await run_in_threadpool(batch_of, parsed), parsed

    # Reading

    async def read(self, request: Request) -> Response:
        query = parse_query(request, ReadQuery, operation="read")
        start, name = parse_start(query.start), topic_name(request)
        as_arrow = wants_arrow(request)

        def begin() -> tuple[Topic, int]:
            topic = self._storage.topic(name)
            if not as_arrow:
                check_has_json(topic.stream_schema, topic.name, operation="read")
            return topic, topic.start_offset_of(start)

        topic, offset = await run_in_threadpool(begin)
        if query.wait_ms:
            async with ends_of(request, self._closing) as ends:
                await wait_past(topic.log, offset, query.wait_ms / 1000, ends=ends)

        def finish() -> Response:
            found = read_range(self._storage, topic, offset, max_messages=query.max_messages, max_bytes=query.max_bytes)
            return self._deliver(found, as_arrow=as_arrow)

        return await run_in_threadpool(finish)

    def _deliver(self, found: MessageRange, *, as_arrow: bool) -> Response:
        if as_arrow:
            response = Response(write_stream(found.schema, found.batches), media_type=ARROW_STREAM)
        else:
            response = json_response(range_as_json(found))
        response.headers[NEXT_OFFSET_HEADER] = str(found.next_offset)
        response.headers[DURABLE_END_HEADER] = str(found.durable_end)
        if found.batches:
            self._metrics.delivered(
                sum(batch.num_rows for batch in found.batches), sum(batch.nbytes for batch in found.batches)
            )
        return response


def _resolve(acknowledged: "asyncio.Future[Append]") -> Callable[[Append], None]:
    loop = acknowledged.get_loop()

    def give(append: Append) -> None:
        if not acknowledged.done():
            acknowledged.set_result(append)

    def acknowledge(append: Append) -> None:
        """Called by the thread that commits."""
        with contextlib.suppress(RuntimeError):  # the door's loop has ended; the commit must not hear of it
            loop.call_soon_threadsafe(give, append)

    return acknowledge


def check_has_json(schema: pa.Schema, topic: TopicName, *, operation: str) -> None:
    """Raise unless batches of this schema are messages, which have a JSON form. Deliveries have one column more."""
    if schema.names[: len(_STREAM_COLUMNS)] != _STREAM_COLUMNS:
        raise NotAcceptableError(
            "the topic has columns of its own, which have no JSON form here",
            operation=operation,
            place=str(topic),
            remedy=f"ask with Accept: {ARROW_STREAM}",
        )


def wants_arrow(request: Request) -> bool:
    """Return whether `Accept` names Arrow; everything else gets JSON."""
    accepted = request.headers.get("accept", "")
    return any(part.partition(";")[0].strip().lower() == ARROW_STREAM for part in accepted.split(","))
