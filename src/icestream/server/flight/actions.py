"""The administrative actions of the Flight door: a request struct in, a response struct out (docs/protocol.md)."""

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from icestream.model.callers import Caller
from icestream.model.errors import InvalidRequestError
from icestream.model.messages import encode_schema
from icestream.model.names import TopicName, check_producer
from icestream.model.offsets import StartPosition
from icestream.protocol import admin, pipeline, subscribe
from icestream.protocol.parsing import given, parse
from icestream.protocol.socket import SocketAddress
from icestream.server.access import ACTIONS, Access
from icestream.server.calls import (
    broker_stats,
    check_change,
    create_topic,
    open_subscription,
    subscription_stats,
    topics_of,
)
from icestream.storage import (
    IcebergStorage,
    PipelineFigures,
    TenantFigures,
    cloud_objects,
    flush_topic,
    recover_topic,
    recoverable_topics,
    topic_schema,
    topic_stats,
)
from icestream.subscription import describe
from icestream.wal import check_offset, split_range

_MAX_WAIT_SECONDS = 10.0
_NOTHING: dict[str, Any] = {}
_encode = msgspec.json.Encoder().encode


class _Action(NamedTuple):
    request: Any
    run: Callable[..., Any]
    """Takes the request, and the caller if `Access.OWN` is needed. Returns what is sent as JSON."""
    description: str


class Actions:
    def __init__(
        self, storage: IcebergStorage, version: str, figures: PipelineFigures, tenants: TenantFigures | None = None
    ) -> None:
        self._storage = storage
        self.socket_address: SocketAddress | None = None
        self._tenants = tenants or TenantFigures(storage, figures)
        self._version = version
        self._broker_id = str(uuid4())
        self._backlog = storage.backlog
        self._figures = figures
        named = subscribe.NamedSubscription
        self._actions = {
            "create_topic": _Action(admin.CreateTopic, self._create_topic, "Create a topic"),
            "list_topics": _Action(admin.ListTopics, self._list_topics, "Describe all topics"),
            "describe_topic": _Action(admin.NamedTopic, self._describe_topic, "Describe one topic"),
            "update_topic": _Action(admin.UpdateTopicAction, self._update_topic, "Change a topic"),
            "delete_topic": _Action(
                admin.DeleteTopic, self._delete_topic, "Delete a topic, its messages and its table"
            ),
            "wait_committed": _Action(
                admin.WaitCommitted, self._wait_committed, "Wait until a message is in the table"
            ),
            "open_producer": _Action(admin.OpenProducer, self._open_producer, "Ask where a producer continues"),
            "stats": _Action(admin.StatsRequest, self._stats, "Figures of topics and broker"),
            "tenant_stats": _Action(admin.TenantRequest, self._tenant_stats, "Figures of tenants"),
            "ping": _Action(admin.NoFields, self._ping, "The broker's version"),
            "backlog": _Action(pipeline.BacklogRequest, self._ask_backlog, "What topics hold for the pipeline"),
            "cut_range": _Action(pipeline.CutRange, self._cut_range, "Cut a range into slices of about equal bytes"),
            "committed": _Action(
                pipeline.CommittedHint, self._committed, "Hint that messages have reached a topic's table"
            ),
            "pipeline_report": _Action(
                pipeline.PipelineReport, self._report, "Report figures and failures of the pipeline"
            ),
            "list_subscriptions": _Action(
                subscribe.ListSubscriptions, self._list_subscriptions, "Describe a topic's subscriptions, or all"
            ),
            "create_subscription": _Action(
                subscribe.OpenSubscription, self._create_subscription, "Create a subscription, or change its options"
            ),
            "describe_subscription": _Action(
                named, self._describe_subscription, "Describe one subscription: progress, lag and consumers"
            ),
            "seek_subscription": _Action(
                subscribe.SeekSubscription, self._seek_subscription, "Move a subscription, back or forth"
            ),
            "delete_subscription": _Action(named, self._delete_subscription, "Delete a subscription and its progress"),
            "flush_topic": _Action(admin.FlushTopic, self._flush_topic, "Upload what is durable to the cloud now"),
            "reset_clock": _Action(
                admin.NamedTopic, self._reset_clock, "Let publish times that are ahead follow the clock again"
            ),
            "recover_topic": _Action(
                admin.NamedTopic, self._recover_topic, "Recover a topic from the cloud and its table"
            ),
            "recoverable_topics": _Action(
                admin.NoFields, self._recoverable_topics, "List topics whose log is lost, or that only the cloud has"
            ),
            "cloud_objects": _Action(
                admin.ListCloudObjects, self._cloud_objects, "List a topic's objects in the cloud"
            ),
        }

    def descriptions(self) -> list[tuple[str, str]]:
        return [(name, action.description) for name, action in self._actions.items()]

    def run(self, name: str, body: bytes, caller: Caller) -> bytes:
        """Check who calls, run an action and return its response."""
        action = self._actions.get(name)
        if action is None:
            raise InvalidRequestError(f"there is no action {name!r:.80}", remedy=f"use {', '.join(self._actions)}")
        access = ACTIONS.get(name, Access.FULL)
        if access is Access.FULL:
            caller.check_everything(operation=name)
        try:
            request = parse(body, action.request, operation=name)
        except InvalidRequestError:
            # A caller that may not touch the topic learns nothing else, not even what is wrong with the request.
            if (topic := _topic_in(body)) is not None:
                caller.check_topic(topic, operation=name)
            raise
        if (topic := getattr(request, "topic", None)) is not None:
            caller.check_topic(topic, operation=name)
        return _encode(action.run(request, caller) if access is Access.OWN else action.run(request))

    # Topics

    def _create_topic(self, request: admin.CreateTopic) -> admin.TopicDescription:
        return create_topic(self._storage, request, if_not_exists=request.if_not_exists)

    def _list_topics(self, request: admin.ListTopics, caller: Caller) -> admin.TopicList:
        topics = topics_of(self._storage, caller, request.prefix)
        return admin.TopicList([topic.summarize() for topic in topics])

    def _describe_topic(self, request: admin.NamedTopic) -> admin.TopicDescription:
        return self._storage.topic(request.topic).describe()

    def _update_topic(self, request: admin.ChangeTopic) -> admin.TopicDescription:
        changes = given(request)
        return self._storage.topics.update(changes.pop("topic"), changes).describe()

    def _delete_topic(self, request: admin.DeleteTopic) -> dict[str, Any]:
        self._storage.delete(request.topic, keep_table=request.keep_table)
        return _NOTHING

    def _wait_committed(self, request: admin.WaitCommitted) -> admin.CommitProgress:
        topic = self._storage.topic(request.topic)
        seconds = min(max(0, request.wait_ms) / 1000, _MAX_WAIT_SECONDS)
        committed = self._storage.table_watch.wait(topic, request.offset + 1, seconds, hurry=request.hurry)
        if committed is None:
            return admin.CommitProgress(committed=False, committed_offset=topic.committed.offset)
        return admin.CommitProgress(
            committed=True, committed_offset=committed.offset, snapshot_id=committed.snapshot_id
        )

    def _open_producer(self, request: admin.OpenProducer) -> admin.OpenedProducer:
        producer = check_producer(request.producer)
        schema = topic_schema(request.schema) if request.schema is not None else None
        topic = self._storage.topic(request.topic, create=True, schema=schema)
        log, server = topic.log, self._storage.settings.server
        session = request.session
        return admin.OpenedProducer(
            next_sequence=log.open_producer(producer, session) if session else log.next_sequence(producer),
            schema=encode_schema(topic.body_schema),
            max_message_bytes=server.max_message_bytes,
            max_batch_bytes=server.max_batch_bytes,
        )

    # Figures

    def _stats(self, request: admin.StatsRequest, caller: Caller) -> dict[str, Any]:
        storage = self._storage
        topic = TopicName.parse(request.topic) if request.topic is not None else None
        visible = topics_of(storage, caller)
        shown = visible if topic is None else [storage.topics.get(topic)]
        return {
            "topics": [topic_stats(found) for found in shown],
            "subscriptions": subscription_stats(storage, topic, caller),
            "broker": broker_stats(storage, self._version, len(visible)),
            "pipeline": self._pipeline_stats(topic, caller),
        }

    def _pipeline_stats(self, topic: TopicName | None, caller: Caller) -> dict[str, Any]:
        """Return the reports on topics that the caller may see; the sums are for callers that may see all topics."""
        topics = self._figures.topics(topic)
        if caller.may_do_everything:
            return {**self._figures.sums(), "topics": topics}
        return {
            "topics": {name: found for name, found in topics.items() if caller.may(TopicName.parse(name).namespace)}
        }

    def _tenant_stats(self, request: admin.TenantRequest, caller: Caller) -> admin.TenantPage:
        if request.tenant is not None:
            found = self._tenants.one(caller, request.tenant, operation="tenant_stats")
            return admin.TenantPage(tenants=[found], next_after=None)
        return self._tenants.page(caller, request.after, request.limit)

    def _ping(self, _: admin.NoFields) -> admin.BrokerVersion:
        return admin.BrokerVersion(version=self._version, broker_id=self._broker_id, socket=self.socket_address)

    # The pipeline

    def _ask_backlog(self, request: pipeline.BacklogRequest) -> pipeline.PipelineBacklog:
        return self._backlog.ask(request.topics, mark=request.mark, wait_seconds=max(0, request.wait_ms) / 1000)

    def _cut_range(self, request: pipeline.CutRange) -> pipeline.RangeEnds:
        log = self._storage.topic(request.topic).log
        check_offset(log, request.start)
        check_offset(log, request.end)
        return pipeline.RangeEnds(
            split_range(log, request.start, request.end, range_bytes=request.range_bytes, max_ranges=request.max_ranges)
        )

    def _committed(self, request: pipeline.CommittedHint) -> dict[str, Any]:
        topic = self._storage.topic(request.topic)
        if request.stream_id == topic.record.stream_id:
            self._storage.table_watch.hint(topic.name)
        return _NOTHING

    def _report(self, request: pipeline.PipelineReport) -> dict[str, Any]:
        for topic in request.topics:
            TopicName.parse(topic.topic)
        self._figures.report(request.passed, request.topics)
        return _NOTHING

    # Subscriptions

    def _list_subscriptions(self, request: subscribe.ListSubscriptions, caller: Caller) -> subscribe.SubscriptionList:
        if request.topic is not None:
            self._storage.topic(request.topic)  # raises if there is none
        found = self._storage.subscriptions.find(request.topic)
        return subscribe.SubscriptionList([describe(one) for one in found if caller.may(one.topic.namespace)])

    def _create_subscription(
        self, request: subscribe.OpenSubscription, caller: Caller
    ) -> subscribe.SubscriptionDescription:
        return describe(open_requested(self._storage, request, caller, "create_subscription"))

    def _describe_subscription(self, request: subscribe.NamedSubscription) -> subscribe.SubscriptionDescription:
        return describe(self._storage.subscriptions.get(TopicName.parse(request.topic), request.subscription))

    def _seek_subscription(self, request: subscribe.SeekSubscription, caller: Caller) -> subscribe.SeekResult:
        position = StartPosition.from_json(request.position)
        topic = TopicName.parse(request.topic)
        check_change(self._storage, caller, topic, request.subscription, operation="seek_subscription")
        return subscribe.SeekResult(self._storage.subscriptions.seek(topic, request.subscription, position))

    def _delete_subscription(self, request: subscribe.NamedSubscription, caller: Caller) -> dict[str, Any]:
        topic = TopicName.parse(request.topic)
        check_change(self._storage, caller, topic, request.subscription, operation="delete_subscription")
        self._storage.subscriptions.delete(topic, request.subscription)
        return _NOTHING

    # The cloud

    def _flush_topic(self, request: admin.FlushTopic) -> admin.FlushProgress:
        seconds = min(max(0, request.wait_ms), admin.MAX_FLUSH_WAIT_MS) / 1000
        return flush_topic(self._storage, TopicName.parse(request.topic), seconds, request.target)

    def _reset_clock(self, request: admin.NamedTopic) -> admin.ClockResetResult:
        topic = self._storage.topic(request.topic)
        return admin.ClockResetResult(str(topic.name), *topic.log.reset_clock())

    def _recover_topic(self, request: admin.NamedTopic) -> admin.RecoveredTopic:
        return recover_topic(self._storage, TopicName.parse(request.topic))

    def _recoverable_topics(self, _: admin.NoFields) -> admin.RecoverableTopics:
        return recoverable_topics(self._storage)

    def _cloud_objects(self, request: admin.ListCloudObjects) -> admin.CloudObjectPage:
        return cloud_objects(self._storage, TopicName.parse(request.topic), request.after, request.limit)


class _AnyTopic(msgspec.Struct):
    topic: str | None = None


def _topic_in(body: bytes) -> str | None:
    """Return the topic that a malformed request names, if it can be read."""
    try:
        return msgspec.json.decode(body, type=_AnyTopic).topic
    except (msgspec.DecodeError, RecursionError):
        return None


def open_requested(
    storage: IcebergStorage,
    request: subscribe.OpenSubscription,
    caller: Caller,
    operation: str,
    *,
    create: bool = True,
) -> Any:
    """Open the subscription that a request of the Flight door names."""
    options = dict(request.options or {})
    for name, removes in (("filter", ""), ("ack_timeout_ms", 0)):  # null is never sent
        if options.get(name) == removes:
            options[name] = None
    if request.type is not None:
        options["type"] = request.type
    subscription, _ = open_subscription(
        storage,
        TopicName.parse(request.topic),
        request.subscription,
        options,
        start=StartPosition.from_json(request.start),
        caller=caller,
        operation=operation,
        create=create,
    )
    return subscription
