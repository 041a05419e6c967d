"""Clients across a restart of the broker, graceful or by `kill -9`; and how a broker stops."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.flight as fl
import pytest
from tests.fault.broker.load import OPTIONS, Follower, Load

from icestream import Client, aio
from icestream.broker_process import BrokerProcess
from icestream.model.messages import MESSAGE_SCHEMA
from icestream.testing.history import PATIENCE_SECONDS, HistoryChecker, rows
from icestream.wal import LocalFiles
from icestream.wal.records import load_checkpoint

TOPIC = "e2e/restart"
BATCHES = 60
RESTART_AT = (10, 35)
"""Before which batches the broker is restarted; sending goes on meanwhile."""

Stop = Callable[[BrokerProcess], None]


def gracefully(broker: BrokerProcess) -> None:
    assert broker.terminate() == 0, broker.log()


def by_kill_9(broker: BrokerProcess) -> None:
    broker.kill()


@contextmanager
def restarting(broker: BrokerProcess, stop: Stop) -> Iterator[Callable[[int], None]]:
    """A function to be told the number of each batch; at the given ones it restarts the broker beside the sending."""
    failures: list[BaseException] = []
    threads: list[threading.Thread] = []

    def restart() -> None:
        try:
            stop(broker)
            broker.start()
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    def told(number: int) -> None:
        if number in RESTART_AT:
            for thread in threads:
                thread.join()
            threads.append(threading.Thread(target=restart))
            threads[-1].start()

    try:
        yield told
    finally:
        for thread in threads:
            thread.join()
    assert not failures, failures


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", environ={"ICESTREAM_SERVER__SHUTDOWN_TIMEOUT_MS": "5000"})
    with process:
        yield process


def check(broker: BrokerProcess, oracle: HistoryChecker, follower: Follower) -> None:
    with Client(broker.flight) as client:
        found = rows(client.read(TOPIC))
    oracle.check(TOPIC, found)
    assert follower.rows_up_to(len(found)) == found


@pytest.mark.parametrize("stop", [gracefully, by_kill_9])
def test_a_producer_and_a_follower_live_through_restarts_without_loss_or_duplicate(
    broker: BrokerProcess, stop: Stop
) -> None:
    oracle = HistoryChecker()
    with Client(broker.flight) as client:
        client.create_topic(TOPIC)
        follower = Follower(client, TOPIC)
        sent = []
        with (
            client.producer(TOPIC, name="p", retry_timeout=PATIENCE_SECONDS) as producer,
            restarting(broker, stop) as restart,
        ):
            for number in range(BATCHES):
                restart(number)
                payloads = [oracle.sending(TOPIC, "p", b"x" * 500) for _ in range(20)]
                sent += [(producer.send(payload), payload) for payload in payloads]
                if number % 7 == 0:
                    producer.flush(PATIENCE_SECONDS)
            producer.flush(PATIENCE_SECONDS)
        for receipt, payload in sent:
            oracle.acknowledged(TOPIC, receipt.result(0), payload)
        check(broker, oracle, follower)
        follower.close()


@pytest.mark.parametrize("stop", [gracefully, by_kill_9])
def test_the_same_with_asyncio(broker: BrokerProcess, stop: Stop) -> None:
    oracle = HistoryChecker()

    async def publish(restart: Callable[[int], None]) -> None:
        async with aio.Client(broker.flight) as client, client.producer(TOPIC, name="p", **OPTIONS) as producer:
            sent = []
            for number in range(BATCHES):
                await asyncio.to_thread(restart, number)
                payloads = [oracle.sending(TOPIC, "p", b"x" * 500) for _ in range(20)]
                sent += [(await producer.send(payload), payload) for payload in payloads]
                if number % 7 == 0:
                    await producer.flush(PATIENCE_SECONDS)
            await producer.flush(PATIENCE_SECONDS)
            for receipt, payload in sent:
                oracle.acknowledged(TOPIC, await receipt, payload)

    async def follow(count: int) -> list[bytes]:
        async with aio.Client(broker.flight) as client, client.consume(TOPIC, follow=True) as consumer:
            seen: list[bytes] = []
            async for message in consumer:
                assert message.offset == len(seen)
                seen.append(message.payload)
                if len(seen) == count:
                    break
            return seen

    async def both(restart: Callable[[int], None]) -> list[bytes]:
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
            following = group.create_task(follow(BATCHES * 20))
            group.create_task(publish(restart))
        return following.result()

    with Client(broker.flight) as client:
        client.create_topic(TOPIC)
    with restarting(broker, stop) as restart:
        seen = asyncio.run(both(restart))
    with Client(broker.flight) as client:
        found = rows(client.read(TOPIC))
    oracle.check(TOPIC, found)
    assert seen == [row.payload for row in found]


def test_a_stop_under_load_is_clean_and_the_next_start_has_nothing_to_cut(broker: BrokerProcess) -> None:
    oracle, topics = HistoryChecker(), ("e2e/first", "e2e/second")
    with Client(broker.flight) as client:
        for topic in topics:
            client.create_topic(topic)
        with Load(broker.flight, oracle, topics, seed=1).running():
            for _ in range(3):
                oracle.wait_for_acks(oracle.acks + 300)
                assert broker.terminate() == 0, broker.log()
                for topic in topics:
                    directory = broker.data_dir / "wal" / topic
                    checkpoint = load_checkpoint(LocalFiles(), directory)
                    segment = max(directory.glob("*.log"))
                    assert int(segment.stem) == checkpoint.base_offset
                    assert segment.stat().st_size == checkpoint.position, "the end that was noted is not the file's"
                    assert checkpoint.durable_end > oracle.highest_offset(topic)
                    assert not (directory / "torn").exists()
                broker.start()
    assert "torn" not in broker.log_file.read_text()
    for topic in topics:
        with Client(broker.flight) as client:
            oracle.check(topic, rows(client.read(topic)))


def test_idle_producers_and_consumers_do_not_keep_the_broker_from_stopping(tmp_path: Path) -> None:
    """A broker that waited for them would wait for the hour that it is allowed to."""
    broker = BrokerProcess(tmp_path / "data", environ={"ICESTREAM_SERVER__SHUTDOWN_TIMEOUT_MS": "3600000"})
    with broker, Client(broker.flight) as client:
        producer = client.producer(TOPIC)
        producer.send(b"x").result(PATIENCE_SECONDS)
        follower = Follower(client, TOPIC)
        assert len(follower.rows_up_to(1)) == 1
        with fl.FlightClient(broker.flight.replace("grpc:", "grpc+tcp:")) as plain:
            writer, _ = plain.do_put(fl.FlightDescriptor.for_path("publish"), MESSAGE_SCHEMA)
            assert broker.terminate() == 0, broker.log()
            broker.start()
            assert producer.send(b"y").result(PATIENCE_SECONDS) == 1
            assert [row.payload for row in follower.rows_up_to(2)] == [b"x", b"y"]
            with pytest.raises(fl.FlightError):
                writer.close()
        follower.close()
