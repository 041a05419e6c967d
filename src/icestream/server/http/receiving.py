"""A subscription's consumer over plain requests: receive, acknowledge, refuse, leave.

Nothing is set aside for a consumer between its requests. If its client did not wait for an answer that has messages, it
is disconnected: they go out again, and the client is not left to believe that it has them all.
"""

import asyncio
from functools import partial
from typing import TypeVar

import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from icestream.model.errors import InvalidRequestError
from icestream.server.access import check_dead_letters
from icestream.server.http.authorization import caller_of
from icestream.server.http.bodies import json_body, write_stream
from icestream.server.http.consumers import Consumers, KeptConsumer, check_has_json, delivered_as_json, ranges_of
from icestream.server.http.errors import json_response
from icestream.server.http.messages import wants_arrow
from icestream.server.http.models import (
    MAX_READ_BYTES,
    MAX_READ_MESSAGES,
    AckBody,
    NackBody,
    OfConsumer,
    ReceiveBody,
    ReceivedMessages,
)
from icestream.server.http.operations import ARROW_STREAM, JSON, Operation, ResponseSpec, refuse_query
from icestream.server.http.subscriptions import SUBSCRIPTION_PATH, subscription_name
from icestream.server.http.topics import topic_name
from icestream.server.http.waiting import Ends, ends_of
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage
from icestream.subscription import BrokerSubscription

CONSUMER_HEADER = "Icestream-Consumer"
Named = TypeVar("Named", bound=OfConsumer)


class ReceivingApi:
    def __init__(
        self, storage: IcebergStorage, metrics: BrokerMetrics, consumers: Consumers, closing: asyncio.Event
    ) -> None:
        self._storage = storage
        self._metrics = metrics
        self._consumers = consumers
        self._closing = closing

    def operations(self) -> list[Operation]:
        group, done = "subscriptions", {204: ResponseSpec("Done.")}
        return [
            Operation(
                "POST",
                f"{SUBSCRIPTION_PATH}/receive",
                "receive",
                group,
                "Receive messages of a subscription",
                self.receive,
                {
                    200: ResponseSpec(
                        "Messages; none when there was nothing in time.",
                        {JSON: ReceivedMessages, ARROW_STREAM: None},
                        {CONSUMER_HEADER: "The consumer, as in JSON."},
                    )
                },
                body={JSON: ReceiveBody},
                errors=(400, 404, 406, 409, 410, 413, 415, 429, 503),
                details="The first request connects a consumer and tells its token; later ones name it. One that is "
                "silent for `subscriptions.session_timeout_ms` is disconnected, and what it has not acknowledged goes "
                f"to others. Ask with `Accept: {ARROW_STREAM}` for Arrow.",
            ),
            Operation(
                "POST",
                f"{SUBSCRIPTION_PATH}/ack",
                "ack",
                group,
                "AckBody messages",
                self.ack,
                done,
                body={JSON: AckBody},
                errors=(400, 404, 410, 413, 415, 503),
            ),
            Operation(
                "POST",
                f"{SUBSCRIPTION_PATH}/nack",
                "nack",
                group,
                "Have messages sent again",
                self.nack,
                done,
                body={JSON: NackBody},
                errors=(400, 404, 410, 413, 415, 503),
            ),
            Operation(
                "DELETE",
                f"{SUBSCRIPTION_PATH}/consumers/{{consumer}}",
                "disconnect",
                group,
                "Disconnect a consumer",
                self.disconnect,
                {204: ResponseSpec("What it has not acknowledged goes to others at once.")},
                errors=(400, 404, 410, 503),
            ),
        ]

    async def receive(self, request: Request) -> Response:
        operation = "receive"
        refuse_query(request, operation=operation)
        body = await json_body(request, ReceiveBody, self._storage.budget, operation=operation)
        subscription = await self._subscription(request)
        as_arrow = wants_arrow(request)
        if not as_arrow:
            check_has_json(subscription, operation=operation)
        if body.consumer is None:
            kept = await self._consumers.connect(
                subscription, body.name or "", max_messages=MAX_READ_MESSAGES, max_bytes=MAX_READ_BYTES
            )
        else:
            kept = self._consumers.find(body.consumer, subscription, operation=operation)
        if kept.receiving.locked():
            raise InvalidRequestError(
                "another request receives for this consumer",
                operation=operation,
                remedy="wait for its answer, or connect another consumer",
            )
        with self._consumers.using(kept, operation=operation):
            async with kept.receiving, ends_of(request, self._closing) as ends:
                batch = await self._next(kept, body, ends)
                caller_gone = ends[0].done()
                if batch is not None and caller_gone:
                    await self._consumers.close(kept)
        return await run_in_threadpool(partial(self._answer, subscription, kept.token, batch, as_arrow=as_arrow))

    async def _next(self, kept: KeptConsumer, body: ReceiveBody, ends: Ends) -> pa.RecordBatch | None:
        kept.feed.session.touch()
        kept.feed.session.grant(kept.taken_messages, kept.taken_bytes)
        kept.taken_messages = kept.taken_bytes = 0
        batch = await kept.feed.receive(
            max_messages=body.max_messages, max_bytes=body.max_bytes, seconds=body.timeout_ms / 1000, ends=ends
        )
        if batch is not None:
            kept.taken_messages, kept.taken_bytes = batch.num_rows, batch.nbytes
        return batch

    def _answer(
        self, subscription: BrokerSubscription, token: str, batch: pa.RecordBatch | None, *, as_arrow: bool
    ) -> Response:
        if batch is not None:
            self._metrics.delivered(batch.num_rows, batch.nbytes)
        batches = [] if batch is None else [batch]
        if as_arrow:
            response = Response(write_stream(subscription.schema, batches), media_type=ARROW_STREAM)
        else:
            messages = [message for part in batches for message in delivered_as_json(part)]
            response = json_response({"consumer": token, "messages": messages})
        response.headers[CONSUMER_HEADER] = token
        return response

    async def ack(self, request: Request) -> Response:
        body, kept = await self._named(request, AckBody, operation="ack")
        ranges, cumulative = ranges_of(body.offsets, body.ranges), body.cumulative
        if not body.offsets and not body.ranges and cumulative is None:
            raise InvalidRequestError("body: nothing is acknowledged", operation="ack", remedy="name offsets")

        def run() -> None:
            if cumulative is not None:
                kept.feed.session.ack_cumulative(cumulative)
            if ranges:
                kept.feed.session.ack(ranges)

        with self._consumers.using(kept, operation="ack"):
            await run_in_threadpool(run)
        return Response(status_code=204)

    async def nack(self, request: Request) -> Response:
        body, kept = await self._named(request, NackBody, operation="nack")
        if not body.offsets and not body.ranges:
            raise InvalidRequestError("body: nothing is refused", operation="nack", remedy="name offsets")
        ranges = ranges_of(body.offsets, body.ranges)
        with self._consumers.using(kept, operation="nack"):
            await run_in_threadpool(partial(kept.feed.session.nack, ranges, delay_ms=body.delay_ms))
        return Response(status_code=204)

    async def disconnect(self, request: Request) -> Response:
        operation = "disconnect"
        refuse_query(request, operation=operation)
        subscription = await self._subscription(request)
        await self._consumers.close(
            self._consumers.find(request.path_params["consumer"], subscription, operation=operation)
        )
        return Response(status_code=204)

    async def _named(self, request: Request, model: type[Named], *, operation: str) -> tuple[Named, KeptConsumer]:
        """A body and the consumer that it names."""
        refuse_query(request, operation=operation)
        body = await json_body(request, model, self._storage.budget, operation=operation)
        subscription = await self._subscription(request)
        return body, self._consumers.find(body.consumer, subscription, operation=operation)

    async def _subscription(self, request: Request) -> BrokerSubscription:
        topic, name, caller = topic_name(request), subscription_name(request), caller_of(request)

        def run() -> BrokerSubscription:
            found = self._storage.subscriptions.get(topic, name)
            check_dead_letters(caller, topic, name, found.options, operation="receive")
            return found

        return await run_in_threadpool(run)
