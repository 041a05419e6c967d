"""Topics over HTTP, and their objects in the cloud."""

import asyncio

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from icestream.model.errors import TopicExistsError
from icestream.model.names import TopicName, check_part
from icestream.protocol.admin import (
    CloudObjectPage,
    CreateTopic,
    FlushProgress,
    RecoverableTopics,
    RecoveredTopic,
    TopicDescription,
    UpdateTopic,
)
from icestream.protocol.parsing import given
from icestream.server.calls import create_topic, topics_of
from icestream.server.http.errors import json_response
from icestream.server.http.models import DeleteQuery, FlushBody, ObjectsQuery, RecoverBody, TopicPage, TopicsQuery
from icestream.server.http.requests import (
    JSON,
    HttpOperation,
    ResponseSpec,
    caller_of,
    json_body,
    parse_query,
    refuse_query,
)
from icestream.storage import IcebergStorage, Topic, cloud_objects, flush_topic, recover_topic, recoverable_topics

TOPICS_PATH = "/api/v1/topics"
TOPIC_PATH = f"{TOPICS_PATH}/{{namespace}}/{{name}}"


def topic_name(request: HTTPConnection) -> TopicName:
    parts = request.path_params
    return TopicName(
        check_part(parts["namespace"], what="topic namespace"), check_part(parts["name"], what="topic name")
    )


class TopicsApi:
    def __init__(self, storage: IcebergStorage) -> None:
        self._storage = storage

    def operations(self) -> list[HttpOperation]:
        described = {JSON: TopicDescription}
        return [
            HttpOperation(
                "GET",
                TOPICS_PATH,
                "list_topics",
                "topics",
                "List topics by name",
                self.list,
                {200: ResponseSpec("A page of topics.", {JSON: TopicPage})},
                query=TopicsQuery,
                errors=(400, 503),
                details="Opens no log: offsets are null for topics that were not used since the start.",
            ),
            HttpOperation(
                "POST",
                TOPICS_PATH,
                "create_topic",
                "topics",
                "Create a topic",
                self.create,
                {
                    201: ResponseSpec("The topic was created.", described, {"Location": "Where the topic is."}),
                    200: ResponseSpec("The topic existed, and `if_not_exists` was given.", described),
                },
                body={JSON: CreateTopic},
                errors=(400, 409, 413, 415, 429, 503),
            ),
            HttpOperation(
                "GET",
                TOPIC_PATH,
                "describe_topic",
                "topics",
                "Describe a topic",
                self.describe,
                {200: ResponseSpec("The topic.", described)},
                errors=(400, 404, 503),
            ),
            HttpOperation(
                "PATCH",
                TOPIC_PATH,
                "update_topic",
                "topics",
                "Change a topic",
                self.update,
                {200: ResponseSpec("The topic as it is now.", described)},
                body={JSON: UpdateTopic},
                errors=(400, 404, 409, 413, 415, 503),
            ),
            HttpOperation(
                "DELETE",
                TOPIC_PATH,
                "delete_topic",
                "topics",
                "Delete a topic and its messages",
                self.delete,
                {204: ResponseSpec("The topic is gone.")},
                errors=(400, 404, 503),
            ),
        ]

    async def list(self, request: Request) -> Response:
        query = parse_query(request, TopicsQuery, operation="list topics")
        caller = caller_of(request)

        def run() -> TopicPage:
            topics, next_after = page_of(topics_of(self._storage, caller, query.prefix), query)
            # No log is opened, so a damaged topic cannot hide the others.
            return TopicPage([topic.summarize() for topic in topics], next_after)

        return json_response(await run_in_threadpool(run))

    async def create(self, request: Request) -> Response:
        refuse_query(request, operation="create topic")
        body = await json_body(request, CreateTopic, self._storage.budget, operation="create topic")
        caller_of(request).check_topic(body.topic, operation="create topic")

        def run() -> tuple[TopicDescription, int]:
            try:
                return create_topic(self._storage, body, if_not_exists=False), 201
            except TopicExistsError:
                if not body.if_not_exists:
                    raise
                return self._storage.topics.get(body.topic).describe(), 200

        description, status = await run_in_threadpool(run)
        headers = {"Location": f"{TOPICS_PATH}/{description.topic}"} if status == 201 else None  # noqa: PLR2004
        return json_response(description, status, headers)

    async def describe(self, request: Request) -> Response:
        refuse_query(request, operation="describe topic")
        name = topic_name(request)
        return json_response(await run_in_threadpool(lambda: self._storage.topic(name).describe()))

    async def update(self, request: Request) -> Response:
        refuse_query(request, operation="update topic")
        name = topic_name(request)
        body = await json_body(request, UpdateTopic, self._storage.budget, operation="update topic")
        return json_response(await run_in_threadpool(lambda: self._storage.topics.update(name, given(body)).describe()))

    async def delete(self, request: Request) -> Response:
        query = parse_query(request, DeleteQuery, operation="delete topic")
        name = topic_name(request)
        await run_in_threadpool(lambda: self._storage.delete(name, keep_table=query.keep_table == "true"))
        return Response(status_code=204)


def page_of(topics: list[Topic], query: TopicsQuery) -> tuple[list[Topic], str | None]:
    """The topics of a page, and what the next one is to go on after."""
    if query.after:
        after = TopicName.parse(query.after)
        topics = [topic for topic in topics if topic.name > after]
    page = topics[: query.limit]
    return page, str(page[-1].name) if len(topics) > len(page) else None


_MAX_FLUSHES = 12
_MAX_RECOVERIES = 4
"""At the same time, of the 40 threads that the door has; more wait for their turn."""


class CloudApi:
    """Requests that wait for the object store get few of the door's threads: the others never wait behind them."""

    def __init__(self, storage: IcebergStorage) -> None:
        self._storage = storage
        self._flushes = asyncio.Semaphore(_MAX_FLUSHES)
        self._recoveries = asyncio.Semaphore(_MAX_RECOVERIES)

    def operations(self) -> list[HttpOperation]:
        return [
            HttpOperation(
                "POST",
                f"{TOPIC_PATH}/flush",
                "flush_topic",
                "cloud",
                "Upload what is durable to the cloud now",
                self.flush,
                {200: ResponseSpec("How far the cloud is.", {JSON: FlushProgress})},
                body={JSON: FlushBody},
                errors=(400, 404, 413, 415, 503),
            ),
            HttpOperation(
                "POST",
                f"{TOPIC_PATH}/recover",
                "recover_topic",
                "cloud",
                "Recover a topic from the cloud and its table",
                self.recover,
                {200: ResponseSpec("What came from where, and what was lost.", {JSON: RecoveredTopic})},
                body={JSON: RecoverBody},
                errors=(400, 404, 409, 413, 415, 503),
                details="For a topic whose log is lost, or which this broker does not know at all.",
            ),
            HttpOperation(
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
            HttpOperation(
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
