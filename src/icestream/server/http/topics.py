"""Topics over HTTP."""

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from icestream.model.errors import TopicExistsError
from icestream.model.names import TopicName, check_part
from icestream.server.access import topics_of
from icestream.server.http.authorization import caller_of
from icestream.server.http.bodies import json_body
from icestream.server.http.errors import json_response
from icestream.server.http.models import CreateTopic, DeleteQuery, Topics, TopicsQuery, UpdateTopic
from icestream.server.http.models import Topic as TopicModel
from icestream.server.http.operations import JSON, Answer, Operation, parse_query, refuse_query
from icestream.storage import IcebergStorage, Topic
from icestream.storage.record import topic_schema

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

    def operations(self) -> list[Operation]:
        described = {JSON: TopicModel}
        return [
            Operation(
                "GET",
                TOPICS_PATH,
                "list_topics",
                "topics",
                "List topics by name",
                self.list,
                {200: Answer("A page of topics.", {JSON: Topics})},
                query=TopicsQuery,
                errors=(400, 503),
                details="Opens no log: offsets are null for topics that were not used since the start.",
            ),
            Operation(
                "POST",
                TOPICS_PATH,
                "create_topic",
                "topics",
                "Create a topic",
                self.create,
                {
                    201: Answer("The topic was created.", described, {"Location": "Where the topic is."}),
                    200: Answer("The topic existed, and `if_not_exists` was given.", described),
                },
                body={JSON: CreateTopic},
                errors=(400, 409, 413, 415, 429, 503),
            ),
            Operation(
                "GET",
                TOPIC_PATH,
                "describe_topic",
                "topics",
                "Describe a topic",
                self.describe,
                {200: Answer("The topic.", described)},
                errors=(400, 404, 503),
            ),
            Operation(
                "PATCH",
                TOPIC_PATH,
                "update_topic",
                "topics",
                "Change a topic",
                self.update,
                {200: Answer("The topic as it is now.", described)},
                body={JSON: UpdateTopic},
                errors=(400, 404, 409, 413, 415, 503),
            ),
            Operation(
                "DELETE",
                TOPIC_PATH,
                "delete_topic",
                "topics",
                "Delete a topic and its messages",
                self.delete,
                {204: Answer("The topic is gone.")},
                errors=(400, 404, 503),
            ),
        ]

    async def list(self, request: Request) -> Response:
        query = parse_query(request, TopicsQuery, operation="list topics")
        caller = caller_of(request)

        def run() -> dict[str, Any]:
            topics, next_after = page_of(topics_of(self._storage, caller, query.prefix), query)
            # Opening no log: so a damaged topic cannot hide the others either.
            return {"topics": [topic.describe(open_log=False) for topic in topics], "next_after": next_after}

        return json_response(await run_in_threadpool(run))

    async def create(self, request: Request) -> Response:
        refuse_query(request, operation="create topic")
        body = await json_body(request, CreateTopic, self._storage.budget, operation="create topic")
        caller_of(request).check_topic(body.topic, operation="create topic")

        def run() -> tuple[dict[str, Any], int]:
            topics = self._storage.topics
            try:
                topic = topics.create(
                    body.topic,
                    ack=body.ack or self._storage.settings.topics.default_ack,
                    schema=topic_schema(body.arrow_schema) if body.arrow_schema is not None else None,
                    retention_minutes=body.retention_minutes,
                    retention_mb=body.retention_mb,
                    partition_by=body.partition_by,
                    sort_by=body.sort_by,
                    storage=body.storage,
                )
            except TopicExistsError:
                if not body.if_not_exists:
                    raise
                return topics.get(body.topic).describe(), 200
            return topic.describe(), 201

        description, status = await run_in_threadpool(run)
        headers = {"Location": f"{TOPICS_PATH}/{description['topic']}"} if status == 201 else None  # noqa: PLR2004
        return json_response(description, status, headers)

    async def describe(self, request: Request) -> Response:
        refuse_query(request, operation="describe topic")
        name = topic_name(request)
        return json_response(await run_in_threadpool(lambda: self._storage.topic(name).describe()))

    async def update(self, request: Request) -> Response:
        refuse_query(request, operation="update topic")
        name = topic_name(request)
        body = await json_body(request, UpdateTopic, self._storage.budget, operation="update topic")
        changes = body.model_dump(include=body.model_fields_set, by_alias=True)
        return json_response(await run_in_threadpool(lambda: self._storage.topics.update(name, changes).describe()))

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
