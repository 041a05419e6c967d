"""`bench produce`: durable messages a second in batches, single sends, by many producers, on many topics."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from icestream.client import Client, Producer
from icestream.model.messages import message_batch
from icestream_bench.floors import SyncFloor

_BATCH_MESSAGES = 1000
_ROUNDS = 5


def measure_produce(
    broker: str,
    directory: Path,
    *,
    messages: int,
    message_bytes: int,
    topics: int,
    progress: Callable[[float], None],
) -> dict[str, Any]:
    parts = 5
    with Client(broker) as client:
        batches = _batches(client, directory, messages, message_bytes)
        progress(1 / parts)
        sends = _sends(client, messages, message_bytes)
        progress(2 / parts)
    producers = _producers(broker, message_bytes)
    progress(3 / parts)
    with Client(broker) as client:
        one = _singles(client, ["bench/one"] * topics, message_bytes)
        progress(4 / parts)
        many = _singles(client, [f"bench/topic-{number}" for number in range(topics)], message_bytes)
        progress(1)
    return {
        "message_bytes": message_bytes,
        "send_batch": batches,
        "send": sends,
        "single_messages": producers,
        "topics": {
            "count": topics,
            "one_topic_msg_per_s": round(one),
            "many_topics_msg_per_s": round(many),
            "many_to_one": round(many / one, 3),
        },
    }


def _batches(client: Client, directory: Path, messages: int, message_bytes: int) -> dict[str, Any]:
    """Alternate batches of 1,000 messages with bare writes of as many bytes, each synced."""
    batch = message_batch([os.urandom(message_bytes) for _ in range(_BATCH_MESSAGES)])
    count = max(1, messages // _BATCH_MESSAGES // _ROUNDS)
    floor = SyncFloor(directory)
    rates, disk = [], []
    try:
        with client.producer("bench/batches") as producer:
            producer.send_batch(batch).result()
            for _ in range(_ROUNDS):
                syncs = floor.measure(batch.nbytes, count)
                disk.append(count * batch.nbytes / sum(syncs) / 1e6)
                started = perf_counter()
                receipts = [producer.send_batch(batch) for _ in range(count)]
                for receipt in receipts:
                    receipt.result()
                rates.append(count * _BATCH_MESSAGES / (perf_counter() - started))
    finally:
        floor.close()
    rate, floor_rate = median(rates), median(disk)
    mb_per_s = rate * batch.nbytes / _BATCH_MESSAGES / 1e6
    return {
        "msg_per_s": round(rate),
        "mb_per_s": round(mb_per_s, 1),
        "floor_write_fdatasync_mb_per_s": round(floor_rate, 1),
        "share_of_floor": round(mb_per_s / floor_rate, 3),
    }


def _sends(client: Client, messages: int, message_bytes: int) -> dict[str, Any]:
    payload = os.urandom(message_bytes)
    rates, costs = [], []
    with client.producer("bench/sends") as producer:
        producer.send(payload).result()
        for _ in range(_ROUNDS):
            count = messages // _ROUNDS
            send = producer.send
            started = perf_counter()
            for _ in range(count):
                send(payload)
            called = perf_counter()
            producer.flush()
            rates.append(count / (perf_counter() - started))
            costs.append((called - started) / count * 1e6)
    return {"msg_per_s": round(median(rates)), "send_us": round(median(costs), 2)}


def _producers(broker: str, message_bytes: int, count: int = 16, messages: int = 400) -> dict[str, Any]:
    """Measure producers that wait for each acknowledgement: one, many of one client, many with a connection each."""
    one = _waiting_rate(broker, 1, 1, messages * 4, message_bytes)
    together = _waiting_rate(broker, count, 1, messages, message_bytes)
    apart = _waiting_rate(broker, count, count, messages, message_bytes)
    return {
        "producers": count,
        "one_producer_msg_per_s": round(one),
        "all_producers_msg_per_s": round(together),
        "all_to_one": round(together / one, 2),
        "all_producers_with_own_connections_msg_per_s": round(apart),
        "all_with_own_connections_to_one": round(apart / one, 2),
    }


def _waiting_rate(broker: str, count: int, connections: int, messages: int, message_bytes: int) -> float:
    payload = os.urandom(message_bytes)
    clients = [Client(broker) for _ in range(connections)]
    producers = [clients[number % connections].producer("bench/singles") for number in range(count)]
    ready = threading.Barrier(count + 1)

    def work(producer: Producer) -> None:
        producer.send(payload).result()
        ready.wait()
        for _ in range(messages):
            producer.send(payload).result()

    threads = [threading.Thread(target=work, args=(producer,)) for producer in producers]
    for thread in threads:
        thread.start()
    ready.wait()
    started = perf_counter()
    for thread in threads:
        thread.join()
    rate = count * messages / (perf_counter() - started)
    for client in clients:
        client.close()
    return rate


def _singles(client: Client, topics: list[str], message_bytes: int, rounds: int = 10) -> float:
    """Start one producer per topic; each sends one message at a time, all of them in parallel."""
    payload = os.urandom(message_bytes)
    producers = [client.producer(topic) for topic in topics]
    for receipt in [producer.send(payload) for producer in producers]:
        receipt.result()
    started = perf_counter()
    for _ in range(rounds):
        for receipt in [producer.send(payload) for producer in producers]:
            receipt.result()
    rate = rounds * len(producers) / (perf_counter() - started)
    for producer in producers:
        producer.close()
    return rate
