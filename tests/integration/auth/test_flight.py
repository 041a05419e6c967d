"""Tenant by verb at the Flight door: own, foreign, unknown token, no token."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.flight as fl
import pytest
from tests.integration.auth.conftest import (
    ACME,
    FOREIGN,
    GLOBEX,
    NOWHERE,
    OWN,
    PATIENCE_SECONDS,
    ROOT,
    UNKNOWN,
    Guarded,
)
from tests.integration.flight.plain import MESSAGES, failure, messages

from icestream import Client
from icestream.model.errors import PermissionDeniedError, SubscriptionNotFoundError, UnauthenticatedError
from icestream.protocol.parsing import field_names
from icestream.server.access import ACTIONS, Access

Call = Callable[..., Any]
STRANGERS = [None, "", "Bearer", f"Bearer {UNKNOWN}", f"Bearer {ACME}x", f"Basic {ACME}", ACME]


class Raw:
    """Every verb, as plain Flight has it, with any header."""

    def __init__(self, address: str, authorization: str | None) -> None:
        self._client = fl.FlightClient(address.replace("grpc:", "grpc+tcp:"))
        headers = [] if authorization is None else [(b"authorization", authorization.encode())]
        self._options = fl.FlightCallOptions(timeout=PATIENCE_SECONDS, headers=headers)

    def action(self, name: str, **fields: Any) -> Any:
        (result,) = self._client.do_action(fl.Action(name, json.dumps(fields).encode()), self._options)
        return json.loads(result.body.to_pybytes())

    def get(self, **ticket: Any) -> Any:
        return self._client.do_get(fl.Ticket(json.dumps(ticket).encode()), self._options).read_all()

    def put(self, topic: str, **fields: Any) -> Any:
        """The answer to one batch; raises what ends the stream."""
        writer, reader = self._client.do_put(fl.FlightDescriptor.for_path("publish"), MESSAGES, self._options)
        try:
            writer.write_with_metadata(messages(b"x"), json.dumps({"topic": topic, **fields}).encode())
            data = reader.read()
        finally:
            writer.close()
        return json.loads(data.to_pybytes())

    @contextlib.contextmanager
    def exchanging(self, topic: str, **fields: Any) -> Iterator[tuple[Any, Any]]:
        writer, reader = self._client.do_exchange(fl.FlightDescriptor.for_path("subscribe"), self._options)
        with writer:
            writer.write_metadata(json.dumps({"topic": topic, "subscription": "s", **fields}).encode())
            yield writer, reader

    def exchange(self, topic: str, **fields: Any) -> Any:
        """What the broker says first; raises what ends the stream."""
        with self.exchanging(topic, **fields) as (_, reader):
            return _said(reader)

    def info(self, topic: str) -> Any:
        return self._client.get_flight_info(fl.FlightDescriptor.for_path(*topic.split("/")), self._options)

    def schema(self, topic: str) -> Any:
        return self._client.get_schema(fl.FlightDescriptor.for_path(*topic.split("/")), self._options)

    def flights(self) -> list[str]:
        found = self._client.list_flights(b"", self._options)
        return ["/".join(part.decode() for part in flight.descriptor.path) for flight in found]

    def actions(self) -> list[str]:
        return [action.type for action in self._client.list_actions(self._options)]

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def raw(guarded: Guarded) -> Iterator[Callable[[str | None], Raw]]:
    opened: list[Raw] = []

    def connect(authorization: str | None) -> Raw:
        opened.append(Raw(guarded.broker.doors["flight"], authorization))
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


@pytest.mark.parametrize("authorization", STRANGERS)
def test_nobody_gets_in_by_any_verb_without_a_token(
    raw: Callable[[str | None], Raw], authorization: str | None
) -> None:
    client = raw(authorization)
    calls: list[tuple[Call, tuple[Any, ...], dict[str, Any]]] = [
        *((client.action, (name,), {"topic": OWN}) for name in ACTIONS),
        (client.action, ("no such action",), {}),
        (client.get, (), {"topic": OWN}),
        (client.get, (), {"sql": "SELECT 1"}),
        (client.put, (OWN,), {}),
        (client.exchange, (OWN,), {}),
        (client.info, (OWN,), {}),
        (client.flights, (), {}),
        (client.actions, (), {}),
    ]
    for call, arguments, fields in calls:
        with pytest.raises(fl.FlightUnauthenticatedError) as caught:
            call(*arguments, **fields)
        error = json.loads(caught.value.extra_info)
        assert (error["code"], error["retryable"]) == ("unauthenticated", False)
        assert UNKNOWN not in str(caught.value)


def test_two_tokens_are_none(guarded: Guarded) -> None:
    both = [(b"authorization", f"Bearer {token}".encode()) for token in (ACME, GLOBEX)]
    with (
        fl.FlightClient(guarded.broker.doors["flight"].replace("grpc:", "grpc+tcp:")) as client,
        pytest.raises(fl.FlightUnauthenticatedError),
    ):
        list(client.do_action(fl.Action("ping", b"{}"), fl.FlightCallOptions(headers=both)))


class TestForeign:
    """What acme asks of globex is refused, in the same words whether it is there or not."""

    @pytest.fixture
    def acme(self, raw: Callable[[str | None], Raw]) -> Raw:
        return raw(f"Bearer {ACME}")

    def refused_alike(self, call: Call, *arguments: Any, **fields: Any) -> None:
        there, nowhere = (failure(call, *arguments, topic, **fields) for topic in (FOREIGN, NOWHERE))
        assert there == nowhere
        assert there["code"] == "permission_denied"

    def test_actions_that_name_a_topic(self, guarded: Guarded, acme: Raw) -> None:
        def act(name: str, topic: str) -> Any:
            return acme.action(name, topic=topic)

        for name, access in ACTIONS.items():
            if access is not Access.FULL and "topic" in _fields(guarded, name):
                self.refused_alike(act, name)
        assert guarded.root.describe_topic(FOREIGN).durable_end == 3
        assert NOWHERE not in [topic.topic for topic in guarded.root.list_topics()]

    def test_actions_for_those_who_may_do_everything(self, guarded: Guarded, acme: Raw) -> None:
        for name, access in ACTIONS.items():
            if access is Access.FULL:
                assert failure(acme.action, name)["code"] == "permission_denied", name
                assert failure(acme.action, name, topic=OWN)["code"] == "permission_denied", name
        assert guarded.root.backlog().topics

    def test_streams(self, guarded: Guarded, acme: Raw) -> None:
        def get(topic: str, **fields: Any) -> Any:
            return acme.get(topic=topic, **fields)

        self.refused_alike(get)
        self.refused_alike(get, follow=True)
        self.refused_alike(get, frames="whole", start=0, end=1)
        self.refused_alike(acme.exchange)
        self.refused_alike(acme.info)
        assert guarded.root.describe_subscription(FOREIGN, "s").consumers == ()

    def test_a_batch_is_refused_and_the_stream_goes_on(self, guarded: Guarded, acme: Raw) -> None:
        parts = [{"id": 0, "count": 1}]
        for topic in (FOREIGN, NOWHERE, "default/x"):
            assert acme.put(topic)["error"]["code"] == "permission_denied"
            (answer,) = acme.put(topic, parts=parts)["answers"]
            assert answer["error"]["code"] == "permission_denied"
        assert "base_offset" in acme.put("acme/put")
        assert guarded.root.describe_topic(FOREIGN).durable_end == 3
        assert {topic.topic.partition("/")[0] for topic in guarded.root.list_topics()} == {"acme", "globex"}

    def test_what_is_not_there_stays_so(self, acme: Raw) -> None:
        """Flight has verbs that the broker does not answer; they are no way around the others."""
        with pytest.raises((fl.FlightError, OSError, NotImplementedError)):
            acme.schema(FOREIGN)

    def test_lists_have_what_is_its_own(self, guarded: Guarded, acme: Raw) -> None:
        assert FOREIGN in guarded.client(ROOT).list_topics("globex")[0].topic
        assert all(name.startswith("acme/") for name in acme.flights())
        assert OWN in acme.flights()
        assert {topic["topic"].partition("/")[0] for topic in acme.action("list_topics")["topics"]} == {"acme"}
        assert acme.action("list_topics", prefix="globex")["topics"] == []
        assert {one["topic"] for one in acme.action("list_subscriptions")["subscriptions"]} == {OWN}
        figures = acme.action("stats")
        assert {topic["topic"].partition("/")[0] for topic in figures["topics"]} == {"acme"}
        assert figures["broker"]["topics"] == len(figures["topics"])
        assert {one["topic"] for one in figures["subscriptions"]} == {OWN}
        assert set(figures["pipeline"]) == {"topics"}
        assert [one["tenant"] for one in acme.action("tenant_stats")["tenants"]] == ["acme"]
        for tenant in ("globex", "nobody"):
            assert failure(acme.action, "tenant_stats", tenant=tenant)["code"] == "permission_denied"
        assert "passes" in guarded.root.stats()["pipeline"]


def _said(reader: Any) -> Any:
    return json.loads(reader.read_chunk().app_metadata.to_pybytes())


def _fields(guarded: Guarded, action: str) -> frozenset[str]:
    assert guarded.broker._flight is not None
    return frozenset(field_names(guarded.broker._flight._actions._actions[action].request))


def test_all_verbs_work_on_ones_own(guarded: Guarded) -> None:
    """With a tenant's token, through the client."""
    name = "acme/all-verbs"
    with guarded.client(ACME) as client:
        client.create_topic(name)
        assert client.update_topic(name, retention_minutes=60).topic == name
        with client.producer(name) as producer:
            assert [producer.send(payload).offset for payload in (b"a", b"b")] == [0, 1]
        assert client.read(name)["payload"].to_pylist() == [b"a", b"b"]
        with client.consume(name) as consumer:
            assert [message.payload for message in consumer] == [b"a", b"b"]
        with client.consume(name, follow=True, max_messages=1) as tail:
            assert next(iter(tail)).payload == b"a"
        assert client.sql('SELECT count(*) AS n FROM acme."all-verbs"')["n"].to_pylist() == [2]
        described = client.describe_topic(name)
        assert client.cut_range(described.topic, 0, 2, range_bytes=1 << 20, max_ranges=10) == [2]  # type: ignore[arg-type]
        reader = client.read_range(name, described.stream_id, 0, 2)
        assert sum(batch.num_rows for batch in reader.batches()) == 2
        with client.subscribe(name, "s", type="shared") as subscription:
            subscription.ack(next(iter(subscription)))
        assert client.seek_subscription(name, "s", 0) == 0
        assert client.describe_subscription(name, "s").topic == name
        client.delete_subscription(name, "s")
        (figures,) = client.stats(name)["topics"]
        assert figures["message_count"] == 2
        with pytest.raises(Exception, match="no object store"):
            client.flush_topic(name)
        client.delete_topic(name)
    assert name not in [topic.topic for topic in guarded.root.list_topics()]


class TestSubscriptions:
    def test_dead_letters_stay_in_the_namespace(self, guarded: Guarded) -> None:
        acme, root = guarded.acme, guarded.root
        with pytest.raises(PermissionDeniedError):
            acme.create_subscription(OWN, "d", max_redeliveries=0, dead_letter_topic=FOREIGN)
        with pytest.raises(PermissionDeniedError):
            acme.subscribe(OWN, "d", max_redeliveries=0, dead_letter_topic=NOWHERE)
        assert "d" not in [one.subscription for one in acme.subscriptions(OWN)]
        acme.create_subscription(OWN, "d", max_redeliveries=0, dead_letter_topic="acme/dead")
        with pytest.raises(PermissionDeniedError):
            acme.create_subscription(OWN, "d", dead_letter_topic=FOREIGN)
        root.create_subscription(OWN, "d", dead_letter_topic=FOREIGN)
        with pytest.raises(PermissionDeniedError):  # what another one chose is no way around it
            acme.subscribe(OWN, "d")
        for change in (
            lambda: acme.delete_subscription(OWN, "d"),
            lambda: acme.seek_subscription(OWN, "d", "earliest"),
            lambda: acme.delete_subscription(FOREIGN, "d"),
        ):
            with pytest.raises(PermissionDeniedError):
                change()
        root.delete_subscription(OWN, "d")
        acme.create_subscription(OWN, "own")
        acme.seek_subscription(OWN, "own", "earliest")
        acme.delete_subscription(OWN, "own")
        with pytest.raises(SubscriptionNotFoundError):
            acme.delete_subscription(OWN, "own")

    def test_nobody_ends_anothers_stream_by_its_name(self, guarded: Guarded, raw: Callable[[str | None], Raw]) -> None:
        theirs, mine = raw(f"Bearer {GLOBEX}"), raw(f"Bearer {ACME}")
        with theirs.exchanging(FOREIGN, instance="i") as (_, reader):
            assert "subscribed" in _said(reader)
            assert "subscribed" in mine.exchange(OWN, instance="i")
            assert reader.read_chunk().data.num_rows == 3
            assert len(guarded.root.describe_subscription(FOREIGN, "s").consumers) == 1


def test_errors_are_typed_for_clients(guarded: Guarded) -> None:
    for token in (None, UNKNOWN):
        with guarded.client(token) as client:
            for call in (client.ping, lambda: client.read(OWN), lambda: client.subscribe(OWN, "s")):
                with pytest.raises(UnauthenticatedError, match="ICESTREAM_TOKEN"):
                    call()
    with pytest.raises(PermissionDeniedError):
        guarded.acme.producer(FOREIGN)
    with pytest.raises(PermissionDeniedError):
        guarded.acme.read(FOREIGN)


def test_everything_is_open_to_root(guarded: Guarded) -> None:
    assert {topic.topic for topic in guarded.root.list_topics()} >= {OWN, FOREIGN}
    assert guarded.root.recoverable_topics()["lost"] == []
    assert guarded.root.read(FOREIGN).num_rows == 3
    with Client(guarded.broker.doors["flight"], token=guarded.broker.pipeline_token) as pipeline:
        assert {topic.topic for topic in pipeline.backlog().topics} >= {OWN, FOREIGN}
