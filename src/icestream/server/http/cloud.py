"""Topics in the cloud over HTTP: ship now, recover, list objects."""

import asyncio

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from icestream.protocol.admin import CloudObjectPage, FlushProgress, RecoverableTopics, RecoveredTopic
from icestream.server.http.bodies import json_body
from icestream.server.http.errors import json_response
from icestream.server.http.models import FlushBody, ObjectsQuery, RecoverBody
from icestream.server.http.operations import JSON, Operation, ResponseSpec, parse_query, refuse_query
from icestream.server.http.topics import TOPIC_PATH, topic_name
from icestream.storage import IcebergStorage
from icestream.storage.cloud.admin import cloud_objects, flush_topic, recover_topic, recoverable_topics

_MAX_FLUSHES = 12
_MAX_RECOVERIES = 4
"""At the same time, of the 40 threads that the door has; more wait for their turn."""


class CloudApi:
    """Requests that wait for the object store get few of the door's threads: the others never wait behind them."""

    def __init__(self, storage: IcebergStorage) -> None:
        self._storage = storage
        self._flushes = asyncio.Semaphore(_MAX_FLUSHES)
        self._recoveries = asyncio.Semaphore(_MAX_RECOVERIES)

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                f"{TOPIC_PATH}/flush",
                "flush_topic",
                "cloud",
                "Ship what is durable to the cloud now",
                self.flush,
                {200: ResponseSpec("How far the cloud is.", {JSON: FlushProgress})},
                body={JSON: FlushBody},
                errors=(400, 404, 413, 415, 503),
            ),
            Operation(
                "POST",
                f"{TOPIC_PATH}/recover",
                "recover_topic",
                "cloud",
                "Make a topic live again from the cloud and its table",
                self.recover,
                {200: ResponseSpec("What came from where, and what was lost.", {JSON: RecoveredTopic})},
                body={JSON: RecoverBody},
                errors=(400, 404, 409, 413, 415, 503),
                details="For a topic whose log is lost, or which this broker does not know at all.",
            ),
            Operation(
                "GET",
                f"{TOPIC_PATH}/objects",
                "cloud_objects",
                "cloud",
                "List a topic's objects in the cloud by offset",
                self.objects,
                {200: ResponseSpec("A page of objects.", {JSON: CloudObjectPage})},
                query=ObjectsQuery,
                errors=(400, 404, 503),
            ),
            Operation(
                "GET",
                "/api/v1/recoverable",
                "recoverable_topics",
                "cloud",
                "List topics that can be recovered",
                self.recoverable,
                {200: ResponseSpec("Names of topics.", {JSON: RecoverableTopics})},
                errors=(400, 503),
            ),
        ]

    async def flush(self, request: Request) -> Response:
        refuse_query(request, operation="flush topic")
        name = topic_name(request)
        body = await json_body(request, FlushBody, self._storage.budget, operation="flush topic")
        async with self._flushes:
            flushed = await run_in_threadpool(flush_topic, self._storage, name, body.wait_ms / 1000, body.target)
        return json_response(flushed)

    async def recover(self, request: Request) -> Response:
        refuse_query(request, operation="recover topic")
        name = topic_name(request)
        await json_body(request, RecoverBody, self._storage.budget, operation="recover topic")
        async with self._recoveries:
            return json_response(await run_in_threadpool(recover_topic, self._storage, name))

    async def objects(self, request: Request) -> Response:
        query = parse_query(request, ObjectsQuery, operation="list cloud objects")
        name = topic_name(request)
        return json_response(await run_in_threadpool(cloud_objects, self._storage, name, query.after, query.limit))

    async def recoverable(self, request: Request) -> Response:
        refuse_query(request, operation="list recoverable topics")
        async with self._recoveries:
            return json_response(await run_in_threadpool(recoverable_topics, self._storage))
