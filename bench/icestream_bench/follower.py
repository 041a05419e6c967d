"""The receiving side of `bench fanout`: followers that record the age of each message when it arrives."""

import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from icestream.client import Client
from icestream_bench.payloads import ages_seconds

_TIMEOUT_SECONDS = 60.0
_BATCH_MESSAGES = 10_000


def subscribe(client: Client, topic: str, number: int, messages: int, ready: threading.Barrier) -> Iterator[pa.Array]:
    with client.subscribe(topic, f"follower-{number}", start="earliest") as subscription:
        ready.wait()
        count = 0
        while count < messages:
            batch = subscription.receive_batch(max_messages=_BATCH_MESSAGES, timeout=_TIMEOUT_SECONDS)
            if batch is None:
                return
            count += batch.num_rows
            yield batch.column("payload")
            subscription.ack(batch)


def consume(client: Client, topic: str, messages: int, ready: threading.Barrier) -> Iterator[pa.Array]:
    with client.consume(topic, start="earliest", follow=True, max_messages=messages) as consumer:
        ready.wait()
        for batch in consumer.batches():
            yield batch.column("payload")


def stop(client: Client, topic: str, ready: threading.Barrier, done: threading.Event) -> None:
    """Receive one message and then nothing more, until the others are done."""
    with client.subscribe(topic, "stopped", start="earliest") as subscription:
        ready.wait()
        subscription.receive(timeout=_TIMEOUT_SECONDS)
        done.wait()


def bare(address: str, ready: threading.Barrier) -> Iterator[pa.Array]:
    with flight.connect(address) as client:
        ready.wait()
        for chunk in client.do_get(flight.Ticket(b"all")):
            yield chunk.data.column("payload")


def main() -> None:
    mode, address, topic = sys.argv[1:4]
    first, followers, stopped, messages = map(int, sys.argv[4:8])
    ready, done, lock = threading.Barrier(followers + stopped + 1), threading.Event(), threading.Lock()
    results: list[Any] = []

    def measure(batches: Iterator[pa.Array]) -> None:
        ages = [ages_seconds(payloads) for payloads in batches]
        with lock:
            results.append(np.concatenate(ages))

    def work(number: int) -> None:
        if mode == "bare":
            measure(bare(address, ready))
            return
        with Client(address) as client:
            if mode == "consume":
                measure(consume(client, topic, messages, ready))
            elif number < followers:
                measure(subscribe(client, topic, first + number, messages, ready))
            else:
                stop(client, topic, ready, done)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(followers + stopped)]
    for thread in threads:
        thread.start()
    ready.wait()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for thread in threads[:followers]:
        thread.join()
    done.set()
    for thread in threads[followers:]:
        thread.join()
    np.save(sys.argv[8], np.concatenate(results))
    sys.stdout.write(f"{sum(len(ages) == messages for ages in results)}\n")


if __name__ == "__main__":
    main()
