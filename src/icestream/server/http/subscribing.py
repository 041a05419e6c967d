"""How the streams that connect a consumer open their subscription."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from icestream.model.errors import SubscriptionNotFoundError
from icestream.server.access import check_dead_letters
from icestream.server.http.admission import caller_of
from icestream.server.http.deliveries import check_has_json
from icestream.server.http.models_subscriptions import SubscribeQuery
from icestream.server.http.reading import parse_start
from icestream.server.http.subscriptions import subscription_name
from icestream.server.http.topics import topic_name
from icestream.storage import IcebergStorage
from icestream.subscription import Subscription, SubscriptionOptions

PIECE_MESSAGES = 500
PIECE_BYTES = 256 << 10
"""What is made into JSON and written at a time, when the connection has taken what was before."""
NO_LIMIT_BYTES = 1 << 50
"""The connection itself is the limit: there is no queue behind it."""


async def open_subscription(
    storage: IcebergStorage, connection: HTTPConnection, query: SubscribeQuery, *, operation: str
) -> Subscription:
    """The subscription that a path names, made where it is missing; what the query says of it is changed."""
    topic, name = topic_name(connection), subscription_name(connection)
    start, caller = parse_start(query.start), caller_of(connection)
    given = query.model_dump(include={"type", "filter"}, exclude_none=True)

    def run() -> Subscription:
        subscriptions = storage.subscriptions
        try:
            before = subscriptions.get(topic, name).options
        except SubscriptionNotFoundError:
            before = SubscriptionOptions()
        options = SubscriptionOptions.from_json({**before.to_json(), **given})
        check_dead_letters(storage, caller, topic, name, options, operation=operation)
        subscription = subscriptions.open(topic, name, options, start=start)
        check_has_json(subscription, operation=operation)
        return subscription

    return await run_in_threadpool(run)
