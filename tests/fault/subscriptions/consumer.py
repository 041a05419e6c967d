"""A consumer to be killed: writes down what it gets, then acknowledges it.

`consumer.py URL TOPIC SUBSCRIPTION TYPE NAME LOG SEED`. A line of the log is written with one call, before the message
is acknowledged: a message that is acknowledged and in no log was lost.
"""

import os
import random
import sys
import time

from icestream import Client
from icestream.client import Subscription
from icestream.model.errors import SubscriptionBusyError, UnavailableError


def subscribe(client: Client, topic: str, name: str, kind: str, consumer: str) -> Subscription:
    while True:
        try:
            return client.subscribe(topic, name, type=kind, consumer=consumer, receiver_queue=200)
        except (SubscriptionBusyError, UnavailableError):
            time.sleep(0.05)


def main() -> None:
    url, topic, name, kind, consumer, log, seed = sys.argv[1:]
    rng = random.Random(seed)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Client(url) as client, subscribe(client, topic, name, kind, consumer) as subscription:
        for message in subscription:
            os.write(file, b"%d %d %s\n" % (time.monotonic_ns(), message.offset, message.payload))
            if kind in {"exclusive", "failover"} and rng.random() < 0.1:
                subscription.ack_cumulative(message)
            else:
                subscription.ack(message)
            if rng.random() < 0.02:
                time.sleep(rng.random() * 0.01)


if __name__ == "__main__":
    main()
