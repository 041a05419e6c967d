"""A recovery, and what others do with the topic at the same time."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cloud_objects import FragileStore
from tests.unit.storage.disaster import PATIENCE, TOPIC, Disaster, names, publish, rows, storage

from icestream.cloud.object import ObjectName
from icestream.model.errors import ConflictError, StaleEpochError
from icestream.storage.cloud.recovery import TopicRecovery


def test_a_topic_is_neither_changed_nor_deleted_while_it_is_recovered(
    tmp_path: Path, disaster: Disaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = storage(tmp_path).open()
    store.topics.create(TOPIC)
    publish(store, 3)
    store.topic(TOPIC).cloud.flush(PATIENCE)  # type: ignore[union-attr]
    kept = rows(store)
    disaster.strike(store, keep_metadata=True)
    refused: list[str] = []
    put = TopicRecovery._put

    with storage(tmp_path) as store:

        def meddle(recovery: TopicRecovery, *arguments: object) -> None:
            for meddling in (lambda: store.delete(TOPIC), lambda: store.topics.update(TOPIC, {"ack": "memory"})):
                with pytest.raises(ConflictError, match="being recovered") as raised:
                    meddling()
                refused.append(raised.value.operation)
            put(recovery, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(TopicRecovery, "_put", meddle)
        store.recover_topic(TOPIC)
        assert refused == ["delete topic", "update topic"]
        assert rows(store) == kept
        store.delete(TOPIC)
        assert not store.topics.find()


def test_a_broker_with_a_metadata_store_of_its_own_is_kept_out_too(tmp_path: Path, objects: FragileStore) -> None:
    with storage(tmp_path / "a") as stale:
        stale.topics.create(TOPIC)
        publish(stale, 2)
        topic = stale.topic(TOPIC)
        assert topic.cloud is not None
        topic.cloud.flush(PATIENCE)
        with storage(tmp_path / "b") as successor:
            report = successor.recover_topic(TOPIC)
            publish(successor, 1)
            noted = _noted(objects)
            publish(stale, 1)
            with pytest.raises(StaleEpochError, match="epoch 2"):
                topic.cloud.flush(PATIENCE)
            with pytest.raises(StaleEpochError):
                publish(stale, 1)
            assert rows(successor).keys() == {0, 1, report.next_offset}
    assert _noted(objects)["head"]["epoch"] == noted["head"]["epoch"] == 2
    with storage(tmp_path / "a") as again:
        _ = again.topic(TOPIC).log
        cloud = again.topic(TOPIC).cloud
        assert cloud is not None
        with pytest.raises(StaleEpochError):
            cloud.flush(PATIENCE)
        with pytest.raises(StaleEpochError):
            publish(again, 1)
    made = [ObjectName.parse(key) for key in names(objects)]
    assert [name.end_offset for name in made if name is not None and name.epoch == 1][-1] == 2


def _noted(objects: FragileStore) -> dict[str, Any]:
    (found,) = (data for key, data in objects.objects.items() if key.endswith("topic.json"))
    return dict(json.loads(bytes(found)))
