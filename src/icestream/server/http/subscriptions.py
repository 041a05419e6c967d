"""Administration of subscriptions over HTTP."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from icestream.model.names import check_part
from icestream.model.offsets import StartPosition
from icestream.protocol.parsing import given
from icestream.protocol.subscribe import SeekResult, SubscriptionDescription, SubscriptionList
from icestream.server.access import open_subscription
from icestream.server.http.authorization import caller_of
from icestream.server.http.bodies import json_body
from icestream.server.http.errors import json_response
from icestream.server.http.models import Position, PositionObject, PutSubscription, Seek
from icestream.server.http.operations import JSON, Operation, ResponseSpec, refuse_query
from icestream.server.http.reading import parse_start
from icestream.server.http.topics import TOPIC_PATH, topic_name
from icestream.storage import IcebergStorage
from icestream.subscription import describe

SUBSCRIPTIONS_PATH = f"{TOPIC_PATH}/subscriptions"
SUBSCRIPTION_PATH = f"{SUBSCRIPTIONS_PATH}/{{subscription}}"


def subscription_name(connection: HTTPConnection) -> str:
    return check_part(connection.path_params["subscription"], what="subscription name")


def position_of(value: Position) -> StartPosition:
    """A position as text, or as JSON."""
    if isinstance(value, str):
        return parse_start(value)
    return StartPosition.from_json(value.to_json() if isinstance(value, PositionObject) else value)


class SubscriptionsApi:
    def __init__(self, storage: IcebergStorage) -> None:
        self._storage = storage

    def operations(self) -> list[Operation]:
        group, described = "subscriptions", {JSON: SubscriptionDescription}
        return [
            Operation(
                "GET",
                SUBSCRIPTIONS_PATH,
                "list_subscriptions",
                group,
                "List a topic's subscriptions by name",
                self.list,
                {200: ResponseSpec("The subscriptions.", {JSON: SubscriptionList})},
                errors=(400, 404, 503),
            ),
            Operation(
                "GET",
                SUBSCRIPTION_PATH,
                "describe_subscription",
                group,
                "Describe a subscription, its progress and its consumers",
                self.describe,
                {200: ResponseSpec("The subscription.", described)},
                errors=(400, 404, 503),
            ),
            Operation(
                "PUT",
                SUBSCRIPTION_PATH,
                "put_subscription",
                group,
                "Create a subscription, or change its options",
                self.put,
                {
                    201: ResponseSpec("The subscription was created.", described),
                    200: ResponseSpec("The subscription as it is now.", described),
                },
                body={JSON: PutSubscription},
                errors=(400, 404, 409, 413, 415, 429, 503),
                details="Type and filter cannot change while consumers are connected.",
            ),
            Operation(
                "DELETE",
                SUBSCRIPTION_PATH,
                "delete_subscription",
                group,
                "Delete a subscription and its progress",
                self.delete,
                {204: ResponseSpec("The subscription is gone; its consumers were disconnected.")},
                errors=(400, 404, 503),
            ),
            Operation(
                "POST",
                f"{SUBSCRIPTION_PATH}/seek",
                "seek_subscription",
                group,
                "Go on from another place",
                self.seek,
                {200: ResponseSpec("The offset that the position means.", {JSON: SeekResult})},
                body={JSON: Seek},
                errors=(400, 404, 413, 415, 416, 503),
                details="Consumers stay connected; what they have not acknowledged is forgotten.",
            ),
        ]

    async def list(self, request: Request) -> Response:
        refuse_query(request, operation="list subscriptions")
        name = topic_name(request)

        def run() -> SubscriptionList:
            topic = self._storage.topic(name)
            return SubscriptionList([describe(found) for found in self._storage.subscriptions.find(topic.name)])

        return json_response(await run_in_threadpool(run))

    async def describe(self, request: Request) -> Response:
        refuse_query(request, operation="describe subscription")
        topic, name = topic_name(request), subscription_name(request)
        return json_response(await run_in_threadpool(lambda: describe(self._storage.subscriptions.get(topic, name))))

    async def put(self, request: Request) -> Response:
        operation = "put subscription"
        refuse_query(request, operation=operation)
        topic, name = topic_name(request), subscription_name(request)
        body = await json_body(request, PutSubscription, self._storage.budget, operation=operation)
        start, caller = position_of(body.start), caller_of(request)

        changes = given(body)
        del changes["start"]

        def run() -> tuple[SubscriptionDescription, int]:
            subscription, existed = open_subscription(
                self._storage, topic, name, changes, start=start, caller=caller, operation=operation
            )
            return describe(subscription), 200 if existed else 201

        return json_response(*await run_in_threadpool(run))

    async def delete(self, request: Request) -> Response:
        refuse_query(request, operation="delete subscription")
        topic, name = topic_name(request), subscription_name(request)
        await run_in_threadpool(self._storage.subscriptions.delete, topic, name)
        return Response(status_code=204)

    async def seek(self, request: Request) -> Response:
        operation = "seek subscription"
        refuse_query(request, operation=operation)
        topic, name = topic_name(request), subscription_name(request)
        body = await json_body(request, Seek, self._storage.budget, operation=operation)
        position = position_of(body.position)
        offset = await run_in_threadpool(self._storage.subscriptions.seek, topic, name, position)
        return json_response(SeekResult(offset))
