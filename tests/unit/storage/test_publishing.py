"""The bytes that wait for their acknowledgement are counted exactly, whatever the doors' callbacks do."""

from pathlib import Path

import pytest

from icestream.config import load_settings
from icestream.model.enums import AckLevel
from icestream.model.errors import InvalidRequestError, TopicNotFoundError
from icestream.model.messages import message_batch
from icestream.storage import IcebergStorage
from icestream.storage.publishing import PublishItem
from icestream.wal import Append

LEVELS = [AckLevel.DISK, AckLevel.MEMORY]


def storage(path: Path) -> IcebergStorage:
    return IcebergStorage(load_settings(overrides={"data_dir": path}))


def broken(_: Append) -> None:
    raise InvalidRequestError("a broken callback", operation="publish")


@pytest.mark.parametrize("level", LEVELS)
def test_a_callback_that_raises_gives_its_bytes_back_once(tmp_path: Path, level: AckLevel) -> None:
    with storage(tmp_path) as store:
        topic = store.topics.create("default/events")
        store.publishing.submit_all(topic, [PublishItem(message_batch([b"a"]), broken)], level=level, inline=True)
        store.publish(topic, message_batch([b"b"]))
        assert store.budget.wait_until_empty(10)
        assert store.budget.used_bytes == 0


@pytest.mark.parametrize("level", LEVELS)
def test_a_callback_that_raises_keeps_no_other_of_a_request_from_its_acknowledgement(
    tmp_path: Path, level: AckLevel
) -> None:
    calls: list[int] = []

    def count(_: Append) -> None:
        calls.append(1)
        raise InvalidRequestError("a broken callback", operation="publish")

    with storage(tmp_path) as store:
        topic = store.topics.create("default/events")
        store.publishing.submit_all(
            topic, [PublishItem(message_batch([b"a"]), count) for _ in range(3)], level=level, inline=True
        )
    assert calls == [1, 1, 1]


def test_batches_of_one_request_are_told_that_their_topic_was_deleted(tmp_path: Path) -> None:
    refused: list[Append] = []
    with storage(tmp_path) as store:
        topic = store.topics.create("default/events")
        store.publish(topic, message_batch([b"a"]))
        store.topics.delete("default/events")
        items = [PublishItem(message_batch([b"b"]), refused.append) for _ in range(2)]
        store.publishing.submit_all(topic, items, level=AckLevel.DISK, inline=True)
        assert store.budget.used_bytes == 0
    assert [type(append.error) for append in refused] == [TopicNotFoundError, TopicNotFoundError]
