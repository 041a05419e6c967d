"""Two brokers that share a metadata store: only one of them ever takes a topic's messages."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cloud_objects import FragileStore

from icestream.config import load_settings
from icestream.model.errors import DirectoryInUseError, IcestreamError, LogLostError, StaleEpochError
from icestream.model.messages import message_batch
from icestream.storage import IcebergStorage
from icestream.storage.cloud.recovery import TopicRecovery
from icestream_servers import EtcdServer

TOPICS = [f"default/race-{number}" for number in range(40)]
PATIENCE_SECONDS = 60.0
OpenBroker = Callable[..., IcebergStorage]


@pytest.fixture(params=["sqlite", "etcd"])
def open_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenBroker]:
    """Open storages with data directories of their own over one metadata store."""
    if request.param == "sqlite":
        shared: dict[str, Any] = {"metadata.sqlite_path": tmp_path / "shared.db"}
    else:
        server: EtcdServer = request.getfixturevalue("etcd_server")
        shared = {"metadata.etcd_endpoint": [server.url], "metadata.etcd_prefix": f"/{tmp_path.name}"}
    with ExitStack() as opened:

        def broker(name: str, **overrides: object) -> IcebergStorage:
            settings = shared | {"data_dir": tmp_path / name} | overrides
            return opened.enter_context(IcebergStorage(load_settings(overrides=settings)))

        yield broker


def publish(broker: IcebergStorage, topic: str) -> int | IcestreamError:
    """Publish one message; return its offset, or the error that refused it."""
    try:
        return broker.publish(broker.topic(topic, create=True), message_batch([b"x"])).base_offset
    except IcestreamError as error:
        return error


@pytest.mark.parametrize("created_first", [True, False], ids=["created before", "created by the publish"])
def test_of_two_brokers_that_publish_first_exactly_one_acknowledges(
    open_broker: OpenBroker, created_first: bool
) -> None:
    a = open_broker("a")
    if created_first:
        for topic in TOPICS:
            a.topics.create(topic)
    b = open_broker("b")
    ready = threading.Barrier(2)

    def race(broker: IcebergStorage) -> list[int | IcestreamError]:
        results = []
        for topic in TOPICS:
            ready.wait(PATIENCE_SECONDS)
            results.append(publish(broker, topic))
        return results

    with ThreadPoolExecutor(2) as pool:
        of_a, of_b = (done.result() for done in [pool.submit(race, a), pool.submit(race, b)])
    for results in zip(of_a, of_b, strict=True):
        refused = [result for result in results if isinstance(result, IcestreamError)]
        assert len(refused) == 1, results
        # A broker that learns of the topic after its log was noted cannot tell whether that log is lost.
        assert isinstance(refused[0], StaleEpochError | LogLostError)
        assert "another broker" in f"{refused[0]} {refused[0].remedy}"
        assert "icestream topic recover" in refused[0].remedy
    for broker in (a, b):
        broker.close()
    # After a restart the one that holds the log goes on, and the other one is refused again.
    a, b = open_broker("a"), open_broker("b")
    for topic, result_a, result_b in zip(TOPICS, of_a, of_b, strict=True):
        for broker, before in ((a, result_a), (b, result_b)):
            after = publish(broker, topic)
            if isinstance(before, int):
                assert after == before + 1
            else:
                assert isinstance(after, LogLostError)
                assert str(broker.settings.wal.dir) not in after.message


def test_a_broker_that_comes_later_is_told_where_the_log_is(open_broker: OpenBroker, tmp_path: Path) -> None:
    a = open_broker("a")
    a.topics.create("default/t")
    b = open_broker("b")
    assert publish(a, "default/t") == 0
    for _ in range(2):
        refused = publish(b, "default/t")
        assert isinstance(refused, StaleEpochError)
        assert str(tmp_path / "a" / "wal") in refused.message
    assert not (tmp_path / "b" / "wal" / "default" / "t").exists()
    assert b.topics.lost() == []
    assert publish(a, "default/t") == 1


def test_a_broker_goes_on_with_a_data_directory_that_was_moved(open_broker: OpenBroker, tmp_path: Path) -> None:
    with open_broker("a") as a:
        assert publish(a, "default/t") == 0
    (tmp_path / "a").rename(tmp_path / "moved")
    with open_broker("moved") as moved:
        assert publish(moved, "default/t") == 1


def test_a_log_that_a_killed_broker_made_and_did_not_note_is_refused_when_another_one_is_noted(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_broker("a") as a:
        a.topics.create("default/t")
        with monkeypatch.context() as patch:
            patch.setattr(type(a.topics), "_note_log", _killed)
            with pytest.raises(KeyboardInterrupt):
                _ = a.topic("default/t").log
    b = open_broker("b")
    assert publish(b, "default/t") == 0
    with open_broker("a") as a:
        assert isinstance(publish(a, "default/t"), StaleEpochError)
    assert publish(b, "default/t") == 1


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_topic_is_not_recovered_while_the_broker_that_holds_its_log_runs(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FragileStore()
    monkeypatch.setattr("icestream.cloud.opendal_store.open_object_store", lambda *_: objects)
    cloud = {"cloud.backend": "fs", "cloud.root": "/nowhere", "uploader.enabled": True}
    a = open_broker("a", **cloud)
    publish(a, "default/t")
    b = open_broker("b", **cloud)
    with pytest.raises(DirectoryInUseError, match="running broker") as raised:
        b.recover_topic("default/t")
    assert raised.value.place == str(a.settings.wal.dir.absolute())
    assert publish(a, "default/t") == 1
    a.close()
    report = b.recover_topic("default/t")
    assert any(str(a.settings.wal.dir) in source for source in report.sources)
    assert publish(b, "default/t") == report.next_offset
    with open_broker("a", **cloud) as a:
        assert isinstance(publish(a, "default/t"), StaleEpochError)


def test_of_two_brokers_that_recover_a_topic_at_once_only_one_takes_its_messages(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FragileStore()
    monkeypatch.setattr("icestream.cloud.opendal_store.open_object_store", lambda *_: objects)
    cloud = {"cloud.backend": "fs", "cloud.root": "/nowhere", "uploader.enabled": True}
    with open_broker("lost", **cloud) as lost:
        publish(lost, "default/t")
    brokers = [open_broker("a", **cloud), open_broker("b", **cloud)]
    claimed = threading.Barrier(2)
    claim = TopicRecovery._claim

    def both_read_first(recovery: TopicRecovery, *arguments: Any) -> Any:
        claimed.wait(PATIENCE_SECONDS)
        return claim(recovery, *arguments)

    monkeypatch.setattr(TopicRecovery, "_claim", both_read_first)

    def recover(broker: IcebergStorage) -> int | IcestreamError:
        try:
            broker.recover_topic("default/t")
        except IcestreamError as error:
            return error
        return publish(broker, "default/t")

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(recover, brokers))
    assert len([result for result in results if isinstance(result, int)]) == 1, results
