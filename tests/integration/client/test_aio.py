import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.client.broker import VERSION, ScriptedBroker
from tests.integration.client.conftest import TOPIC, icestream_threads

import icestream.aio
from icestream.aio import Client
from icestream.client import Consumer, Producer, Subscription
from icestream.model.errors import ClosedError, DeadlineError, InvalidMessageError, OverloadedError


def run(broker: ScriptedBroker, test: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Client(broker.url) as client:
            await client.create_topic(TOPIC)
            await test(client)

    asyncio.run(main())


def test_messages_go_out_and_come_back(broker: ScriptedBroker) -> None:
    async def test(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            receipt = await producer.send(b"hello", key=b"k", attributes={"a": "b"})
            assert await receipt == await receipt.offset == 0
            assert await receipt.publish_time == (await client.read(TOPIC))["publish_time"][0].as_py()
            receipts = [await producer.send(b"%d" % number) for number in range(1000)]
            assert await asyncio.gather(*(one.offset for one in receipts)) == list(range(1, 1001))
            batch = await producer.send_batch(pa.table({"payload": ["x", "y"]}))
            assert (await batch, batch.count, await batch.ranges) == (1001, 2, [(1001, 2)])
        async with client.consume(TOPIC) as consumer:
            assert [message.offset async for message in consumer] == list(range(1003))
        assert (await client.read(TOPIC, 5, 7)).num_rows == 2

    run(broker, test)


def test_waiting_costs_no_thread_a_message(broker: ScriptedBroker) -> None:
    async def test(client: Client) -> None:
        producer = await client.producer(TOPIC)
        await (await producer.send(b"known"))
        broker.hold_acks()
        before = len(icestream_threads())
        waiting = [asyncio.ensure_future((await producer.send(b"x")).result()) for _ in range(500)]
        await asyncio.sleep(0)
        assert len(icestream_threads()) == before
        broker.release_acks()
        assert await asyncio.gather(*waiting) == list(range(1, 501))
        await producer.close()

    run(broker, test)


def test_a_task_that_gives_up_waiting_leaves_the_others_alone(broker: ScriptedBroker) -> None:
    async def test(client: Client) -> None:
        producer = await client.producer(TOPIC)
        broker.hold_acks()
        receipt = await producer.send(b"x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receipt.result(), 0.01)
        other = asyncio.ensure_future(receipt.result())
        broker.release_acks()
        assert await other == 0

    run(broker, test)


def test_a_full_buffer_is_awaited_and_bounded_in_time(broker: ScriptedBroker) -> None:
    async def test(client: Client) -> None:
        async with client.producer(TOPIC, max_buffer_bytes=5_000, max_batch_bytes=1_000) as producer:
            for _ in range(500):
                await producer.send(b"x" * 500)
                assert producer._producer._outbox.buffered_bytes <= 5_000
            await producer.send_batch(pa.table({"payload": [b"x" * 500] * 5}))
        assert len(broker.payloads()) == 505
        broker.hold_acks()
        producer = await client.producer(TOPIC, max_buffer_bytes=1_000, block_timeout=0.01)
        await producer.send(b"x" * 900)
        with pytest.raises(OverloadedError):
            await producer.send(b"x" * 900)
        assert producer._producer._outbox._room_callbacks == []
        broker.release_acks()

    run(broker, test)


def test_faults_are_survived_and_failures_raised(broker: ScriptedBroker) -> None:
    async def test(client: Client) -> None:
        broker.faults.extend(["lost_ack", "retry", "drop", None, "linger"])
        async with client.producer(TOPIC, max_batch_messages=3) as producer:
            receipts = [await producer.send(b"%d" % number) for number in range(30)]
            assert [await receipt for receipt in receipts] == list(range(30))
            await producer.flush()
            broker.faults.append("fatal")
            failed = await producer.send(b"x")
            assert isinstance(await failed.exception(), InvalidMessageError)
            broker.faults.append("fatal")
            await producer.send(b"x")
            with pytest.raises(InvalidMessageError):
                await producer.flush()

    run(broker, test)


def test_flush_has_a_deadline_and_close_ends_the_producer(broker: ScriptedBroker) -> None:
    async def test(client: Client) -> None:
        producer = await client.producer(TOPIC)
        broker.hold_acks()
        await producer.send(b"x")
        with pytest.raises(DeadlineError):
            await producer.flush(timeout=0.01)
        broker.release_acks()
        await producer.close()
        await producer.close()
        with pytest.raises(ClosedError):
            await producer.send(b"y")

    run(broker, test)


def test_the_callers_error_is_the_one_to_see(broker: ScriptedBroker) -> None:
    async def test(client: Client) -> None:
        async def fails() -> None:
            async with client.producer(TOPIC) as producer:
                broker.faults.append("fatal")
                await producer.send(b"x")
                raise KeyError

        with pytest.raises(KeyError):
            await fails()

    run(broker, test)


def test_following_waits_without_blocking_the_loop(broker: ScriptedBroker) -> None:
    async def test(client: Client) -> None:
        consumer = await client.consume(TOPIC, follow=True)

        async def collect() -> list[int]:
            return [message.offset async for message in consumer]

        collecting = asyncio.ensure_future(collect())
        async with client.producer(TOPIC) as producer:
            for number in range(10):
                await (await producer.send(b"%d" % number))
        async with client.consume(TOPIC, max_messages=10, follow=True) as second:
            assert sum([batch.num_rows async for batch in second.batches()]) == 10
        await consumer.close()
        assert (await collecting) == list(range(10))[: len(await collecting)]

    run(broker, test)


def test_administration_is_the_same(broker: ScriptedBroker) -> None:
    async def test(client: Client) -> None:
        assert client.url == broker.url
        assert (await client.update_topic(TOPIC, ack="memory")).ack == "memory"
        assert [topic.topic for topic in await client.list_topics()] == [TOPIC]
        assert (await client.describe_topic(TOPIC)).durable_end == 0
        assert [topic["topic"] for topic in (await client.stats())["topics"]] == [TOPIC]
        assert (await client.ping())["version"] == VERSION
        await client.delete_topic(TOPIC)
        assert await client.list_topics() == []

    run(broker, test)
    assert icestream.aio.Client is Client


@pytest.mark.parametrize("kind", ["producer", "consume", "subscribe"])
def test_what_a_cancelled_task_was_opening_is_closed(
    broker: ScriptedBroker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Client) -> None:
        opened: list[Producer | Consumer | Subscription] = []
        begun, proceed, closed = asyncio.Event(), threading.Event(), threading.Event()
        loop = asyncio.get_running_loop()
        original = getattr(client._client, kind)

        def slow_open(*args: Any, **options: Any) -> Any:
            loop.call_soon_threadsafe(begun.set)
            assert proceed.wait(60)
            opened.append(original(*args, **options))
            close_it = opened[0].close

            def close() -> None:
                close_it()
                closed.set()

            monkeypatch.setattr(opened[0], "close", close)
            return opened[0]

        monkeypatch.setattr(client._client, kind, slow_open)
        names = ["s"] if kind == "subscribe" else []
        opening = asyncio.ensure_future(getattr(client, kind)(TOPIC, *names)._open())
        await begun.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        proceed.set()
        assert await asyncio.to_thread(closed.wait, 60)

    run(broker, test)
