"""The administrative actions of the native door: a JSON object in, a JSON object out."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

from icestream.model.callers import Caller
from icestream.model.errors import InvalidRequestError
from icestream.model.messages import encode_schema
from icestream.model.names import TopicName, check_producer
from icestream.model.offsets import StartPosition
from icestream.server.access import ACTIONS, Access, topics_of
from icestream.server.cloud_requests import (
    MAX_OBJECTS,
    MAX_WAIT_SECONDS,
    cloud_objects,
    flush_topic,
    recover_topic,
    recoverable_topics,
)
from icestream.server.requests import parse_object, take
from icestream.server.subscription_requests import NAMING, OPENING, all_figures, description, named, open_subscription
from icestream.server.tenant_figures import MAX_TENANTS, TenantFigures
from icestream.storage import IcebergStorage
from icestream.storage.pipeline_figures import PASS_FIELDS, SUMMED, TOPIC_FIELDS, PipelineFigures
from icestream.storage.record import CHANGEABLE, topic_schema
from icestream.storage.stats import topic_stats
from icestream.wal import check_offset, split_range

# --------------------
# The native door's actions for topics in the cloud: ship now, recover, list objects.


Fields: TypeAlias = dict[str, Any]
CloudHandler: TypeAlias = tuple[Callable[[Fields], Fields], frozenset[str], str]


class CloudActions:
    def __init__(self, storage: IcebergStorage) -> None:
        self._storage = storage

    def handlers(self) -> dict[str, CloudHandler]:
        """Each action's handler, the fields it takes and what it is for."""
        return {
            "flush_topic": (
                self._flush,
                frozenset({"topic", "target", "wait_ms"}),
                "Ship what is durable to the cloud now",
            ),
            "recover_topic": (
                self._recover,
                frozenset({"topic"}),
                "Make a topic live again from the cloud and its table",
            ),
            "recoverable_topics": (
                self._recoverable,
                frozenset(),
                "Topics whose log is lost, or that only the cloud knows",
            ),
            "cloud_objects": (
                self._objects,
                frozenset({"topic", "after", "limit"}),
                "A topic's objects in the cloud",
            ),
        }

    def _flush(self, fields: Fields) -> Fields:
        operation = "flush_topic"
        wait_ms = take(fields, "wait_ms", int, operation=operation, default=0)
        seconds = min(max(0, wait_ms) / 1000, MAX_WAIT_SECONDS)
        target = take(fields, "target", int, operation=operation)
        return flush_topic(self._storage, _topic(fields, operation), seconds, target)._asdict()

    def _recover(self, fields: Fields) -> Fields:
        return recover_topic(self._storage, _topic(fields, "recover_topic"))

    def _recoverable(self, _: Fields) -> Fields:
        return dict(recoverable_topics(self._storage))

    def _objects(self, fields: Fields) -> Fields:
        operation = "cloud_objects"
        after = take(fields, "after", int, operation=operation, default=-1)
        limit = take(fields, "limit", int, operation=operation, default=MAX_OBJECTS)
        if not 1 <= limit <= MAX_OBJECTS:
            raise InvalidRequestError(f"limit is 1 to {MAX_OBJECTS}, not {limit}", operation=operation)
        return cloud_objects(self._storage, _topic(fields, operation), after, limit)


def _topic(fields: Fields, operation: str) -> TopicName:
    return TopicName.parse(take(fields, "topic", str, operation=operation, required=True))


# --------------------
# The native door's actions for the pipeline: what waits, how to share it out, and what has become of it.


Handler: TypeAlias = tuple[Callable[[Fields], Fields], frozenset[str], str]
_MAX_PIECES = 10_000


class PipelineActions:
    def __init__(self, storage: IcebergStorage, figures: PipelineFigures) -> None:
        self._storage = storage
        self._backlog = storage.backlog
        self.figures = figures

    def handlers(self) -> dict[str, Handler]:
        """Each action's handler, the fields it takes and what it is for."""
        return {
            "backlog": (
                self._ask_backlog,
                frozenset({"topics", "mark", "wait_ms"}),
                "What topics hold for the pipeline",
            ),
            "cut_range": (
                self._cut_range,
                frozenset({"topic", "start", "end", "piece_bytes", "max_pieces"}),
                "A range of a topic in pieces of about equal bytes",
            ),
            "committed": (
                self._committed,
                frozenset({"topic", "stream_id", "committed_offset", "snapshot_id"}),
                "A hint that messages have reached a topic's table",
            ),
            "pipeline_report": (
                self._report,
                frozenset({"pass", "topics"}),
                "Figures and failures of the pipeline",
            ),
        }

    def stats(self, topic: TopicName | None, caller: Caller) -> Fields:
        """Of topics that the caller may see; sums, which are over all of them, for who may see all."""
        topics = self.figures.topics(topic)
        if caller.may_do_everything:
            return {**self.figures.sums(), "topics": topics}
        return {
            "topics": {name: found for name, found in topics.items() if caller.may(TopicName.parse(name).namespace)}
        }

    def _ask_backlog(self, fields: Fields) -> Fields:
        wait_ms = take(fields, "wait_ms", int, operation="backlog", default=0)
        return self._backlog.ask(
            take(fields, "topics", str, operation="backlog", default="*"),
            mark=take(fields, "mark", str, operation="backlog"),
            wait_seconds=max(0, wait_ms) / 1000,
        )

    def _cut_range(self, fields: Fields) -> Fields:
        operation = "cut_range"
        log = self._storage.topic(_topic(fields, operation)).log
        start = take(fields, "start", int, operation=operation, required=True)
        end = take(fields, "end", int, operation=operation, required=True)
        check_offset(log, start)
        check_offset(log, end)
        piece_bytes = take(fields, "piece_bytes", int, operation=operation, required=True)
        max_pieces = take(fields, "max_pieces", int, operation=operation, default=_MAX_PIECES)
        if piece_bytes < 1 or not 1 <= max_pieces <= _MAX_PIECES:
            raise InvalidRequestError(f"piece_bytes is 1 or more, max_pieces 1 to {_MAX_PIECES}", operation=operation)
        return {"ends": split_range(log, start, end, range_bytes=piece_bytes, max_ranges=max_pieces)}

    def _committed(self, fields: Fields) -> Fields:
        operation = "committed"
        topic = self._storage.topic(_topic(fields, operation))
        stream_id = take(fields, "stream_id", str, operation=operation, required=True)
        take(fields, "committed_offset", int, operation=operation, required=True)
        take(fields, "snapshot_id", int, operation=operation)
        if stream_id == topic.record.stream_id:
            self._storage.table_watch.hint(topic.name)
        return {}

    def _report(self, fields: Fields) -> Fields:
        operation = "pipeline_report"
        passed = take(fields, "pass", dict, operation=operation, default={})
        topics = take(fields, "topics", list, operation=operation, default=[])
        _check_report(passed, PASS_FIELDS)
        for figures in topics:
            _check_report(figures, TOPIC_FIELDS)
            _topic(figures, operation)
        self.figures.report(passed, topics)
        return {}


def _check_report(figures: Any, allowed: frozenset[str]) -> None:
    """Refuse what could not be added up, or shown."""
    operation = "pipeline_report"
    if not isinstance(figures, dict) or figures.keys() - allowed:
        raise InvalidRequestError(f"a report is an object with {', '.join(sorted(allowed))}", operation=operation)
    for name, value in figures.items():
        kind = str if name in ("topic", "error") else (int, float)
        missing = value is None and name not in SUMMED
        if not missing and (not isinstance(value, kind) or isinstance(value, bool)):
            raise InvalidRequestError(f"{name} must not be {value!r:.80}", operation=operation)


# --------------------
# The native door's actions for subscriptions: make, list, describe, move, delete.


SubscriptionHandler: TypeAlias = tuple[Callable[..., Fields], frozenset[str], str]


class SubscriptionActions:
    def __init__(self, storage: IcebergStorage) -> None:
        self._storage = storage

    def handlers(self) -> dict[str, SubscriptionHandler]:
        """Each action's handler, the fields it takes and what it is for."""
        return {
            "list_subscriptions": (self._list, frozenset({"topic"}), "The subscriptions of a topic, or all"),
            "create_subscription": (self._create, OPENING, "Make a subscription, or change its options"),
            "describe_subscription": (self._describe, NAMING, "One subscription's progress, lag and consumers"),
            "seek_subscription": (self._seek, NAMING | {"position"}, "Move a subscription, back or forth"),
            "delete_subscription": (self._delete, NAMING, "Delete a subscription and its progress"),
        }

    def _list(self, fields: Fields, caller: Caller) -> Fields:
        topic = take(fields, "topic", str, operation="list_subscriptions")
        if topic is not None:
            self._storage.topic(topic)  # says so if there is none
        found = [one for one in self._storage.subscriptions.find(topic) if caller.may(one.topic.namespace)]
        return {"subscriptions": [description(subscription) for subscription in found]}

    def _create(self, fields: Fields, caller: Caller) -> Fields:
        return description(open_subscription(self._storage, fields, caller, "create_subscription"))

    def _describe(self, fields: Fields) -> Fields:
        return description(self._storage.subscriptions.get(*named(fields, "describe_subscription")))

    def _seek(self, fields: Fields) -> Fields:
        topic, name = named(fields, "seek_subscription")
        position = StartPosition.from_json(fields.get("position"))
        return {"offset": self._storage.subscriptions.seek(topic, name, position)}

    def _delete(self, fields: Fields) -> Fields:
        self._storage.subscriptions.delete(*named(fields, "delete_subscription"))
        return {}


_MAX_WAIT_SECONDS = 10.0


class _Action(NamedTuple):
    run: Callable[..., Fields]
    """Takes the request's fields, and who calls where `Access.OWN` is needed."""
    fields: frozenset[str]
    text: str


class Actions:
    def __init__(
        self, storage: IcebergStorage, version: str, figures: PipelineFigures, tenants: TenantFigures | None = None
    ) -> None:
        self._storage = storage
        self._tenants = tenants or TenantFigures(storage, figures)
        self._version = version
        self._broker_id = str(uuid4())
        self.pipeline = PipelineActions(storage, figures)
        topic = frozenset({"topic"})
        self._actions = {
            "create_topic": _Action(
                self._create_topic,
                CHANGEABLE | {"topic", "partition_by", "sort_by", "storage", "if_not_exists"},
                "Make a topic",
            ),
            "list_topics": _Action(self._list_topics, frozenset({"prefix"}), "The topics' descriptions"),
            "describe_topic": _Action(self._describe_topic, topic, "One topic's description"),
            "update_topic": _Action(self._update_topic, CHANGEABLE | topic, "Change a topic"),
            "delete_topic": _Action(
                self._delete_topic, topic | {"keep_table"}, "Delete a topic, its messages and its table"
            ),
            "wait_committed": _Action(
                self._wait_committed, topic | {"offset", "wait_ms", "hurry"}, "Wait until a message is in the table"
            ),
            "open_producer": _Action(
                self._open_producer, frozenset({"topic", "producer", "schema", "session"}), "Where a producer goes on"
            ),
            "stats": _Action(self._stats, topic, "Figures of topics and broker"),
            "tenant_stats": _Action(self._tenant_stats, frozenset({"tenant", "after", "limit"}), "Figures of tenants"),
            "ping": _Action(self._ping, frozenset(), "The broker's version"),
            **{name: _Action(*handler) for name, handler in self.pipeline.handlers().items()},
            **{name: _Action(*handler) for name, handler in SubscriptionActions(storage).handlers().items()},
            **{name: _Action(*handler) for name, handler in CloudActions(storage).handlers().items()},
        }

    def descriptions(self) -> list[tuple[str, str]]:
        return [(name, action.text) for name, action in self._actions.items()]

    def run(self, name: str, body: bytes, caller: Caller) -> Fields:
        action = self._actions.get(name)
        if action is None:
            raise InvalidRequestError(f"there is no action {name!r:.80}", remedy=f"use {', '.join(self._actions)}")
        access = ACTIONS.get(name, Access.EVERYTHING)
        if access is Access.EVERYTHING:
            caller.check_everything(operation=name)
        fields = parse_object(body, operation=name, allowed=action.fields)
        topic = take(fields, "topic", str, operation=name, required=access is Access.TOPIC)
        if topic is not None:
            caller.check_topic(topic, operation=name)
        return action.run(fields, caller) if access is Access.OWN else action.run(fields)

    def _create_topic(self, fields: Fields) -> Fields:
        schema = take(fields, "schema", str, operation="create_topic")
        topic = self._storage.topics.create(
            _topic_name(fields),
            ack=take(fields, "ack", str, operation="create_topic", default=self._storage.settings.topics.default_ack),
            schema=topic_schema(schema) if schema is not None else None,
            retention_minutes=fields.get("retention_minutes"),
            retention_mb=fields.get("retention_mb"),
            partition_by=_texts(fields, "partition_by"),
            sort_by=_texts(fields, "sort_by"),
            storage=take(fields, "storage", str, operation="create_topic"),
            if_not_exists=take(fields, "if_not_exists", bool, operation="create_topic", default=False),
        )
        return topic.describe()

    def _list_topics(self, fields: Fields, caller: Caller) -> Fields:
        prefix = take(fields, "prefix", str, operation="list_topics", default="")
        return {"topics": [topic.describe(open_log=False) for topic in topics_of(self._storage, caller, prefix)]}

    def _describe_topic(self, fields: Fields) -> Fields:
        return self._storage.topic(_topic_name(fields)).describe()

    def _update_topic(self, fields: Fields) -> Fields:
        changes = {name: fields[name] for name in CHANGEABLE & fields.keys()}
        return self._storage.topics.update(_topic_name(fields), changes).describe()

    def _delete_topic(self, fields: Fields) -> Fields:
        keep_table = take(fields, "keep_table", bool, operation="delete_topic", default=False)
        self._storage.delete(_topic_name(fields), keep_table=keep_table)
        return {}

    def _wait_committed(self, fields: Fields) -> Fields:
        operation = "wait_committed"
        topic = self._storage.topic(_topic_name(fields))
        offset = take(fields, "offset", int, operation=operation, required=True)
        wait_ms = take(fields, "wait_ms", int, operation=operation, default=0)
        hurry = take(fields, "hurry", bool, operation=operation, default=True)
        seconds = min(max(0, wait_ms) / 1000, _MAX_WAIT_SECONDS)
        committed = self._storage.table_watch.wait(topic, offset + 1, seconds, hurry=hurry)
        if committed is None:
            return {"committed": False, "committed_offset": topic.committed.offset}
        return {"committed": True, "committed_offset": committed.offset, "snapshot_id": committed.snapshot_id}

    def _open_producer(self, fields: Fields) -> Fields:
        schema = take(fields, "schema", str, operation="open_producer")
        producer = check_producer(take(fields, "producer", str, operation="open_producer", required=True))
        session = take(fields, "session", int, operation="open_producer", default=0)
        if session < 0:
            raise InvalidRequestError(f"session is 0 or more, not {session}", operation="open_producer")
        topic = self._storage.topic(
            _topic_name(fields), create=True, schema=topic_schema(schema) if schema is not None else None
        )
        log, server = topic.log, self._storage.settings.server
        return {
            "next_sequence": log.open_producer(producer, session) if session else log.next_sequence(producer),
            "schema": encode_schema(topic.body_schema),
            "max_message_bytes": server.max_message_bytes,
            "max_batch_bytes": server.max_batch_bytes,
        }

    def _stats(self, fields: Fields, caller: Caller) -> Fields:
        storage = self._storage
        topic = _topic_name(fields) if fields.get("topic") is not None else None
        visible = topics_of(storage, caller)
        shown = visible if topic is None else [storage.topics.get(topic)]
        return {
            "topics": [asdict(topic_stats(found)) for found in shown],
            "subscriptions": all_figures(storage, topic, caller),
            "broker": {
                "version": self._version,
                "topics": len(visible),
                "cache_bytes": storage.cache.nbytes,
                "open_files": storage.files.open_count,
                "in_flight_bytes": storage.budget.used_bytes,
                "disk_free_bytes": storage.disk.free_bytes,
                "disk_full": storage.disk.is_full,
            },
            "pipeline": self.pipeline.stats(topic, caller),
        }

    def _tenant_stats(self, fields: Fields, caller: Caller) -> Fields:
        operation = "tenant_stats"
        tenant = take(fields, "tenant", str, operation=operation)
        if tenant is not None:
            return {"tenants": [self._tenants.one(caller, tenant, operation=operation)], "next_after": None}
        limit = take(fields, "limit", int, operation=operation, default=MAX_TENANTS)
        if not 1 <= limit <= MAX_TENANTS:
            raise InvalidRequestError(f"limit is 1 to {MAX_TENANTS}, not {limit}", operation=operation)
        return self._tenants.page(caller, take(fields, "after", str, operation=operation, default=""), limit)

    def _ping(self, _: Fields) -> Fields:
        return {"version": self._version, "broker_id": self._broker_id}


def _topic_name(fields: Fields) -> TopicName:
    return TopicName.parse(take(fields, "topic", str, operation="topic", required=True))


def _texts(fields: Fields, name: str) -> tuple[str, ...]:
    values = take(fields, name, list, operation="create_topic", default=[])
    if not all(isinstance(value, str) for value in values):
        raise InvalidRequestError(f"{name} is a list of texts", operation="create_topic")
    return tuple(values)
