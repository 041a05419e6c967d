"""The measuring end of `bench fanout`: follows a topic with many consumers and prints when their messages came."""

import json
import struct
import sys
import threading
from time import monotonic_ns

import pyarrow as pa

from icestream.client import Client

_TIME = struct.Struct("<q")


def follow(client: Client, topic: str, messages: int, ready: threading.Barrier, output: threading.Lock) -> None:
    seconds: list[float] = []
    offsets: list[int] = []
    with client.consume(topic, start="earliest", follow=True, max_messages=messages) as consumer:
        ready.wait()
        for batch in consumer.batches():
            now = monotonic_ns()
            offsets += batch.column("offset").to_pylist()
            sent = batch.column("payload").cast(pa.binary()).to_pylist()
            seconds += [(now - _TIME.unpack_from(payload)[0]) / 1e9 for payload in sent]
    with output:
        sys.stdout.write(json.dumps({"complete": offsets == list(range(messages)), "seconds": seconds}) + "\n")


def main() -> None:
    broker, topic, count, messages = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    ready, output = threading.Barrier(count + 1), threading.Lock()
    with Client(broker) as client:
        threads = [threading.Thread(target=follow, args=(client, topic, messages, ready, output)) for _ in range(count)]
        for thread in threads:
            thread.start()
        ready.wait()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
