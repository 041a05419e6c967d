"""Topics over HTTP."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from icestream.model.errors import TopicExistsError
from icestream.model.names import TopicName, check_part
from icestream.protocol.admin import CreateTopic, TopicDescription, UpdateTopic
from icestream.protocol.parsing import given
from icestream.server.access import topics_of
from icestream.server.flight.actions import create_topic
from icestream.server.http.authorization import caller_of
from icestream.server.http.bodies import json_body
from icestream.server.http.errors import json_response
from icestream.server.http.models import DeleteQuery, TopicPage, TopicsQuery
from icestream.server.http.operations import JSON, Operation, ResponseSpec, parse_query, refuse_query
from icestream.storage import IcebergStorage, Topic

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
        described = {JSON: TopicDescription}
        return [
            Operation(
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
            Operation(
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
            Operation(
                "GET",
                TOPIC_PATH,
                "describe_topic",
                "topics",
                "Describe a topic",
                self.describe,
                {200: ResponseSpec("The topic.", described)},
                errors=(400, 404, 503),
            ),
            Operation(
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
            Operation(
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
