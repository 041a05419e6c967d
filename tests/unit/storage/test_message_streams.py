"""Subscriptions through the facade, without any server."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from icestream.config import load_settings
from icestream.model.enums import SubscriptionType
from icestream.model.errors import SubscriptionNotFoundError, TopicNotFoundError
from icestream.model.messages import Message, message_batch
from icestream.storage import IcebergStorage, StartPosition
from icestream.storage.subscribing import MessageStream
from icestream.subscription import SubscriptionOptions

TOPIC = "default/events"
SECONDS = 30


def storage(path: Path) -> IcebergStorage:
    return IcebergStorage(load_settings(overrides={"data_dir": path}))


async def take(stream: MessageStream, count: int) -> list[Message]:
    return [await asyncio.wait_for(anext(stream), SECONDS) for _ in range(count)]


def test_a_stream_goes_on_where_the_last_one_was_acknowledged(tmp_path: Path) -> None:
    async def first_run() -> None:
        async with storage(tmp_path) as store:
            await store.initialize_topic(TOPIC)
            await store.store(TOPIC, [b"%d" % number for number in range(5)])
            async with await store.create_message_stream(TOPIC, "billing") as stream:
                messages = await take(stream, 5)
                assert [message.payload for message in messages] == [b"0", b"1", b"2", b"3", b"4"]
                await stream.ack_cumulative(messages[1])
                await stream.ack(messages[3])

    async def second_run() -> None:
        async with storage(tmp_path) as store:
            progress = await store.get_progress(TOPIC, "billing")
            assert (progress.floor, progress.acknowledged.tolist()) == (2, [[3, 4]])
            async with await store.create_message_stream(TOPIC, "billing") as stream:
                messages = await take(stream, 2)
                assert [(message.offset, message.redelivery_count) for message in messages] == [(2, 1), (4, 1)]
            await store.ack(TOPIC, "billing", 4, cumulative=True)
            assert (await store.get_progress(TOPIC, "billing")).floor == 5

    asyncio.run(first_run())
    asyncio.run(second_run())


def test_a_stream_waits_for_messages_without_a_thread_and_ends_when_it_is_closed(tmp_path: Path) -> None:
    async def run() -> None:
        async with storage(tmp_path) as store:
            await store.initialize_topic(TOPIC)
            streams = [await store.create_message_stream(TOPIC, f"s{number}") for number in range(40)]
            waiting = [asyncio.ensure_future(take(stream, 2)) for stream in streams]
            for number in range(2):
                await store.store(TOPIC, [b"%d" % number])
            for messages in await asyncio.wait_for(asyncio.gather(*waiting), SECONDS):
                assert [message.payload for message in messages] == [b"0", b"1"]
            ending = asyncio.ensure_future(anext(streams[0]))
            await asyncio.sleep(0)
            await streams[0].close()
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(ending, SECONDS)
            for stream in streams:
                await stream.close()

    asyncio.run(run())


def test_a_refused_message_comes_again_and_ends_in_the_dead_letter_topic(tmp_path: Path) -> None:
    async def run() -> None:
        async with storage(tmp_path) as store:
            await store.initialize_topic(TOPIC)
            await store.initialize_topic("default/events-sub-dead-letters")
            await store.store(TOPIC, [b"bad", b"good"])
            options = SubscriptionOptions(type=SubscriptionType.SHARED, max_redeliveries=1, nack_delay_ms=0)
            stream = await store.create_message_stream(TOPIC, "sub", options)
            bad, good = await take(stream, 2)
            await stream.ack(good)
            await stream.nack(bad)
            [again] = await take(stream, 1)
            assert (again.payload, again.redelivery_count) == (b"bad", 1)
            await stream.nack(again)
            async with await store.create_message_stream("default/events-sub-dead-letters", "look") as letters:
                [letter] = await take(letters, 1)
            assert letter.payload == b"bad"
            assert letter.attributes["icestream.origin_offset"] == "0"
            await stream.close()

    asyncio.run(run())


def test_dead_letters_of_a_topic_with_its_own_columns_keep_them(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("key", pa.string()), pa.field("price", pa.float64(), nullable=False)])
    with storage(tmp_path) as store:
        topic = store.topics.create(TOPIC, schema=schema)
        store.publish(topic, pa.RecordBatch.from_pydict({"key": ["a"], "price": [2.5]}, schema=schema))
        options = SubscriptionOptions(max_redeliveries=0, dead_letter_topic="default/dead")
        subscription = store.subscriptions.open(TOPIC, "sub", options)
        consumer = subscription.connect("a")
        batch = consumer.receive(timeout_seconds=SECONDS)
        assert batch is not None
        assert batch.schema.names[-1] == "_redelivery_count"
        consumer.nack([(0, 1)])
        dead = store.subscriptions.open(
            store.topics.create("default/dead", schema=schema, if_not_exists=True).name, "s"
        )
        letters = dead.connect("b").receive(timeout_seconds=SECONDS)
        assert letters is not None
        assert letters.column("price").to_pylist() == [2.5]


def test_deleting_a_topic_deletes_its_subscriptions(tmp_path: Path) -> None:
    with storage(tmp_path) as store:
        store.topics.create(TOPIC)
        consumer = store.subscriptions.open(TOPIC, "sub").connect("a")
        store.delete(TOPIC)
        with pytest.raises(TopicNotFoundError):
            consumer.receive(timeout_seconds=0)
        assert store.subscriptions.find() == []
        store.topics.create(TOPIC)
        with pytest.raises(SubscriptionNotFoundError):
            store.subscriptions.get(TOPIC, "sub")


def test_a_subscription_left_over_from_a_deleted_topic_starts_anew(tmp_path: Path) -> None:
    with storage(tmp_path) as store:
        topic = store.topics.create(TOPIC)
        store.publish(topic, _messages(3))
        store.subscriptions.open(TOPIC, "sub", start=StartPosition.latest())
        store.topics.delete(TOPIC)  # and not its subscriptions: as if the broker had been killed in between
    with storage(tmp_path) as store:
        assert store.subscriptions.find() == []
        store.publish(store.topics.create(TOPIC), _messages(2))
        batch = store.subscriptions.open(TOPIC, "sub").connect("a").receive(timeout_seconds=SECONDS)
        assert batch is not None
        assert batch.column("offset").to_pylist() == [0, 1]


def _messages(count: int) -> pa.RecordBatch:
    return message_batch([b"x"] * count)
