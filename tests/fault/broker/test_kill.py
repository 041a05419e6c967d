"""`kill -9` of a real broker under load, again and again, at moments given by numbers of acknowledgements."""

import contextlib
import os
import random
from pathlib import Path

import pytest
from tests.fault.broker.load import Follower, Load

from icestream import Client
from icestream.broker_process import BrokerProcess
from icestream.testing.history import HistoryChecker, StoredMessage, rows

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))
ROUNDS_PER_SEED = 150 if SOAK else 5
TOPICS = ("kill/first", "kill/second")
TINY_SEGMENTS = {"ICESTREAM_WAL__MAX_FILE_SIZE": "65536", "ICESTREAM_WAL__FILE_SYNC__INTERVAL_MS": "50"}


def kill_and_restart(broker: BrokerProcess, oracle: HistoryChecker, rng: random.Random) -> None:
    """One round: so many acknowledgements, the end, a new start; what was acknowledged is there at once."""
    oracle.wait_for_acks(oracle.acks + rng.choice((0, 1, rng.randint(2, 100), *[rng.randint(100, 1500)] * 2)))
    broker.kill()
    acknowledged = {topic: oracle.highest_offset(topic) for topic in TOPICS}
    broker.start()
    with Client(broker.flight) as client:
        for topic, offset in acknowledged.items():
            assert client.describe_topic(topic).durable_end > offset, "the log is shorter than what was acknowledged"


def read_all(broker: BrokerProcess, topic: str) -> list[StoredMessage]:
    with Client(broker.flight) as client:
        return rows(client.read(topic))


def run_rounds(broker: BrokerProcess, oracle: HistoryChecker, seed: int) -> None:
    rng = random.Random(seed)
    with Client(broker.flight) as client, contextlib.ExitStack() as followers:
        for topic in TOPICS:
            client.create_topic(topic)
        following = {topic: followers.enter_context(contextlib.closing(Follower(client, topic))) for topic in TOPICS}
        with Load(broker.flight, oracle, TOPICS, seed).running():
            for _ in range(ROUNDS_PER_SEED):
                kill_and_restart(broker, oracle, rng)
            oracle.wait_for_acks(oracle.acks + 100)
        for topic, follower in following.items():
            found = read_all(broker, topic)
            oracle.check(topic, found)
            assert follower.rows_up_to(len(found)) == found


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_under_load_loses_nothing_doubles_nothing_and_keeps_every_order(tmp_path: Path, seed: int) -> None:
    oracle = HistoryChecker()
    broker = BrokerProcess(tmp_path / "data", environ=TINY_SEGMENTS)
    try:
        with broker:
            run_rounds(broker, oracle, seed)
            broker.kill()
        with broker:
            for topic in TOPICS:
                oracle.check(topic, read_all(broker, topic))
                assert len(list((broker.data_dir / "wal" / topic).glob("*.log"))) > 3, "no segment was turned over"
    except BaseException as error:
        error.add_note(f"seed {seed}, after {oracle.acks} acknowledgements")
        if broker.log_file.exists():
            error.add_note(broker.log())
        raise
