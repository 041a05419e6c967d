"""Subscriptions on a real storage: history from the table, the tail from the log, progress in each metadata store."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.reading import TOPIC, Stage
from tests.servers import require

from icestream.model.enums import SubscriptionType
from icestream.model.offsets import StartPosition
from icestream.subscription import BrokerSubscription, ConsumerSession, SubscriptionOptions
from icestream_servers import EtcdServer

MESSAGES = 400
PATIENCE_SECONDS = 60.0


def payload(number: int) -> bytes:
    return b"%06d" % number + b"x" * 200


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    opened = Stage(tmp_path)
    yield opened
    opened.close()


def fill(stage: Stage, messages: int = MESSAGES) -> None:
    """So that the first half is in the table alone."""
    for first in range(0, messages, 10):
        stage.publish([payload(number) for number in range(first, first + 10)])
    stage.commit(messages // 2)
    assert stage.prune() > messages // 4


def subscribe(stage: Stage, name: str = "s", **options: Any) -> BrokerSubscription:
    return stage.storage.subscriptions.open(TOPIC, name, SubscriptionOptions(**options), start=StartPosition.earliest())


def take(session: ConsumerSession, count: int) -> list[int]:
    """As many messages as said, acknowledged; each must be the one that was published at its offset."""
    found: list[int] = []
    while len(found) < count:
        batch = session.receive(max_messages=count - len(found), timeout_seconds=PATIENCE_SECONDS)
        assert batch is not None, f"{len(found)} of {count} came"
        offsets = batch.column("offset").to_pylist()
        assert batch.column("payload").to_pylist() == [payload(offset) for offset in offsets]
        session.ack([(offset, offset + 1) for offset in offsets])
        session.grant(batch.num_rows, batch.nbytes)
        found += offsets
    return found


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key-shared"])
def test_history_comes_from_the_table_and_then_the_log_in_one_stream(stage: Stage, kind: str) -> None:
    fill(stage)
    session = subscribe(stage, type=SubscriptionType(kind)).connect("c")
    assert take(session, MESSAGES) == list(range(MESSAGES))
    stage.publish([payload(MESSAGES)])
    assert take(session, 1) == [MESSAGES]


def test_the_log_is_pruned_and_the_table_compacted_under_a_subscription(stage: Stage) -> None:
    fill(stage)
    session = subscribe(stage).connect("c")
    assert take(session, 50) == list(range(50))
    stage.commit()
    stage.prune()
    stage.compact()
    assert take(session, MESSAGES - 50) == list(range(50, MESSAGES))


def test_a_filter_leaves_out_messages_of_both_tiers(stage: Stage) -> None:
    fill(stage)
    wanted = [number for number in range(MESSAGES) if number % 100 < 3]
    some = ", ".join(f"'{payload(number).decode()}'" for number in wanted)
    session = subscribe(stage, filter=f"payload in ({some})").connect("c")
    assert take(session, len(wanted)) == wanted
    assert session.receive(timeout_seconds=0) is None
    assert session.subscription.stats().lag_messages == 0


def test_a_subscription_is_set_back_into_the_table(stage: Stage) -> None:
    fill(stage)
    stage.table().tag("half")
    subscription = subscribe(stage)
    session = subscription.connect("c")
    take(session, MESSAGES)
    assert stage.storage.subscriptions.seek(TOPIC, "s", StartPosition.offset(7)) == 7
    assert take(session, MESSAGES - 7) == list(range(7, MESSAGES))
    assert stage.storage.subscriptions.seek(TOPIC, "s", StartPosition.parse("tag:half")) == MESSAGES // 2
    assert take(session, MESSAGES // 2) == list(range(MESSAGES // 2, MESSAGES))


def test_a_thousand_subscriptions_each_get_everything_and_remember_it(stage: Stage) -> None:
    stage.publish([payload(number) for number in range(5)])
    threads_before = threading.active_count()
    sessions = [subscribe(stage, f"s{number}").connect("c") for number in range(1_000)]
    for session in sessions:
        assert take(session, 5) == list(range(5))
    stage.publish([payload(5)])
    for session in sessions:
        assert take(session, 1) == [5]
    assert threading.active_count() - threads_before < 10
    stage.restart()
    assert {found.stats().floor_offset for found in stage.storage.subscriptions.find(TOPIC)} == {6}
    assert len(stage.storage.subscriptions.find(TOPIC)) == 1_000


def test_progress_is_kept_in_etcd_and_waits_while_it_is_away(tmp_path: Path) -> None:
    require("etcd")
    with EtcdServer(tmp_path / "etcd") as etcd:
        stage = Stage(tmp_path / "data", metadata={"etcd_endpoint": etcd.url, "etcd_timeout_ms": 2_000})
        try:
            stage.publish([payload(number) for number in range(100)])
            session = subscribe(stage).connect("c")
            assert take(session, 40) == list(range(40))
            etcd.pause()
            assert take(session, 30) == list(range(40, 70))  # nothing that consumers do waits for etcd
            etcd.resume()
            stage.restart()
            again = stage.storage.subscriptions.get(TOPIC, "s").connect("c")
            assert take(again, 30) == list(range(70, 100))
        finally:
            stage.close()
