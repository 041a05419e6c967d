"""`kill -9` of the broker and of consumers, and consumers that stop, in each type of subscription."""

import os
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from tests.fault.subscriptions.harness import SUBSCRIPTION, TOPIC, Consumers, check, publishing

from icestream import Client
from icestream.broker_process import BrokerProcess

ROUNDS = 80 if os.environ.get("ICESTREAM_SOAK") else 3
CONSUMERS = {"exclusive": 1, "shared": 3, "failover": 2, "key-shared": 3}
ENVIRON = {
    "ICESTREAM_SUBSCRIPTIONS__SESSION_TIMEOUT_MS": "1000",
    "ICESTREAM_SUBSCRIPTIONS__PROGRESS_INTERVAL_MS": "50",
    "ICESTREAM_WAL__MAX_FILE_SIZE": "65536",
}
KINDS = pytest.mark.parametrize("kind", list(CONSUMERS))


FAULTS = ("broker killed", "consumer killed", "consumer frozen", "broker stopped")


def faults(rng: random.Random) -> Iterator[str]:
    """Each of them in every four rounds, in any order."""
    while True:
        yield from rng.sample(FAULTS, len(FAULTS))


def one_round(client: Client, broker: BrokerProcess, consumers: Consumers, fault: str, rng: random.Random) -> None:
    consumers.wait_for_more(rng.randint(1, 400))
    victim = rng.choice(consumers.alive)
    match fault:
        case "broker killed":
            broker.kill()
            broker.start()
        case "broker stopped":
            assert broker.terminate() == 0, broker.log()
            broker.start()
        case "consumer killed":
            consumers.kill(victim)
            consumers.start()
        case "consumer frozen":
            victim.freeze()
            consumers.wait_until_gone(client, victim)
            if len(consumers.alive) == 1:  # nobody is there to take over
                consumers.wait_for_more_of(consumers.start())
                consumers.kill(victim)
            else:
                consumers.wait_for_more(rng.randint(1, 100))
                victim.thaw()


@KINDS
def test_kills_lose_nothing_and_keep_the_order(tmp_path: Path, kind: str) -> None:
    seed = 5
    rng = random.Random(seed)
    broker = BrokerProcess(tmp_path / "data", environ=ENVIRON)
    with broker, Client(broker.flight) as client:
        client.create_topic(TOPIC)
        client.create_subscription(TOPIC, SUBSCRIPTION, type=kind)
        consumers = Consumers(broker, kind, tmp_path, seed)
        try:
            with publishing(client, seed) as published:
                for _ in range(CONSUMERS[kind]):
                    consumers.start()
                for fault in islice(faults(rng), ROUNDS):
                    one_round(client, broker, consumers, fault, rng)
            consumers.wait_for_all(client)
            check(kind, consumers.lines(), published[0])
            # Nothing acknowledged is sent again after a clean restart.
            before = consumers.count()
            assert broker.terminate() == 0, broker.log()
            broker.start()
            found = client.describe_subscription(TOPIC, SUBSCRIPTION)
            assert (found.floor_offset, found.lag_messages) == (published[0], 0)
            assert consumers.count() == before
        except BaseException as error:
            error.add_note(broker.log())
            raise
        finally:
            consumers.end()


@KINDS
def test_a_stuck_consumer_keeps_nobody_from_going_on(tmp_path: Path, kind: str) -> None:
    """Its own messages go to others once it is found silent; another subscription does not even notice."""
    seed = 7
    with BrokerProcess(tmp_path / "data", environ=ENVIRON) as broker, Client(broker.flight) as client:
        client.create_topic(TOPIC)
        client.create_subscription(TOPIC, SUBSCRIPTION, type=kind)
        consumers = Consumers(broker, kind, tmp_path, seed)
        others = Consumers(broker, "exclusive", tmp_path, seed, name="other")
        try:
            others.start()
            stuck = consumers.start()
            with publishing(client, seed) as published:
                consumers.wait_for_more(50)
                stuck.freeze()
                frozen_at = stuck.count()
                consumers.start()
                others.wait_for_more(300)
            others.wait_for_all(client)
            consumers.wait_for_all(client)
            assert stuck.count() <= frozen_at + 1
            check(kind, consumers.lines(), published[0])
            check("exclusive", others.lines(), published[0])
            stuck.thaw()
            consumers.kill(stuck)
        finally:
            consumers.end()
            others.end()
