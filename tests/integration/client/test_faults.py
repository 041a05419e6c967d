"""No loss, no duplicate, order kept: whatever the broker and the connection do."""

import itertools
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration.client.broker import ScriptedBroker
from tests.integration.client.conftest import TOPIC

from icestream import Client, Producer
from icestream.client.producer import Receipt
from icestream.model.errors import InvalidMessageError, SequenceError, TopicNotFoundError, UnavailableError

NUMBERS = itertools.count()
FAULTS = ["retry", "drop", "lost_ack", "linger", "fatal", "gap"]


def check(broker: ScriptedBroker, receipts: list[Receipt], topic: str = TOPIC) -> None:
    """Receipt n is of payload n: acknowledged ones stand once, in order, at their offset; failed ones nowhere."""
    errors = [receipt.exception(timeout=60) for receipt in receipts]
    stored = [int(payload) for payload in broker.payloads(topic)]
    assert stored == sorted(set(stored))
    for number, error in enumerate(errors):
        if error is None:
            assert stored[receipts[number].offset] == number
        else:
            assert isinstance(error, InvalidMessageError)
            assert number not in stored


def send_all(producer: Producer, count: int, start: int = 0) -> list[Receipt]:
    return [producer.send(b"%d" % number) for number in range(start, start + count)]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("place", [0, 1, 4])
def test_one_fault_among_many_batches(client: Client, broker: ScriptedBroker, fault: str, place: int) -> None:
    broker.faults.extend([None] * place + [fault])
    with client.producer(TOPIC, max_batch_messages=3) as producer:
        receipts = send_all(producer, 50)
        check(broker, receipts)
        failed = [receipt for receipt in receipts if receipt.exception() is not None]
        assert bool(failed) == (fault == "fatal")
        assert len(broker.payloads()) == 50 - len(failed)


@given(
    script=st.lists(st.sampled_from([None, None, *FAULTS]), max_size=12),
    bursts=st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=6),
    batch=st.integers(1, 4),
    in_flight=st.integers(1, 8),
    linger=st.sampled_from([0, 0, 1]),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_script_of_faults(
    client: Client,
    broker: ScriptedBroker,
    script: list[str | None],
    bursts: list[tuple[int, bool]],
    batch: int,
    in_flight: int,
    linger: int,
) -> None:
    topic = f"default/of-{next(NUMBERS)}"
    client.create_topic(topic)
    broker.reset(script)
    receipts: list[Receipt] = []
    producer = client.producer(topic, max_batch_messages=batch, max_in_flight=in_flight, linger_ms=linger)
    for count, waits in bursts:
        receipts += send_all(producer, count, len(receipts))
        if waits:
            receipts[-1].exception(timeout=60)
    check(broker, receipts, topic)
    producer.close()


@pytest.mark.parametrize("broker", [{"topics": {"auto_create": False}}], indirect=True)
def test_producers_beside_a_failing_one_are_not_disturbed(client: Client, broker: ScriptedBroker) -> None:
    client.create_topic("default/gone")
    lost = client.producer("default/gone")
    well = client.producer(TOPIC)
    lost.send(b"0").result()
    client.delete_topic("default/gone")
    failed, good = lost.send(b"1"), send_all(well, 10)
    with pytest.raises(TopicNotFoundError):
        failed.result(timeout=60)
    check(broker, good)


def test_after_a_final_failure_the_same_producer_goes_on_without_a_hole(client: Client, broker: ScriptedBroker) -> None:
    with client.producer(TOPIC, name="mine", max_batch_messages=2) as producer:
        producer.send(b"0").result()
        broker.hold_acks()
        broker.faults.extend([None, "fatal"])
        receipts = send_all(producer, 12, start=1)
        broker.release_acks()
        errors = [receipt.exception(timeout=60) for receipt in receipts]
        assert sum(error is not None for error in errors) == 2
        assert producer.name == "mine"
    assert client.read(TOPIC)["sequence"].to_pylist() == list(range(11))


def test_a_named_producer_whose_numbering_is_lost_fails_and_can_be_opened_again(
    client: Client, broker: ScriptedBroker
) -> None:
    producer = client.producer(TOPIC, name="mine")
    producer.send(b"0").result()
    broker.faults.append("gap")
    with pytest.raises(SequenceError, match="open the producer again"):
        producer.send(b"1").result(timeout=60)
    with pytest.raises(SequenceError):
        producer.send(b"2")
    producer.close()
    broker.forgotten.clear()
    with client.producer(TOPIC, name="mine") as again:
        again.send(b"3")
    assert broker.payloads() == [b"0", b"3"]


def test_a_generated_name_changes_when_the_broker_forgot_what_it_acknowledged(
    client: Client, broker: ScriptedBroker, tmp_path: Path
) -> None:
    with client.producer(TOPIC) as producer:
        producer.send(b"0").result()
        producer.send(b"1").result()
        before = producer.name
        # As after a crash of a broker that acknowledged from memory: it goes on with an older state of its disk.
        broker.stop()
        shutil.copytree(broker.data_dir, tmp_path / "older")
        broker.start()
        producer.send(b"2").result(timeout=60)
        producer.send(b"3").result(timeout=60)
        broker.stop()
        broker.start(tmp_path / "older")
        assert producer.send(b"4").result(timeout=60) == 2
        assert producer.name != before
    assert broker.payloads() == [b"0", b"1", b"4"]


def test_sending_goes_on_after_the_broker_was_restarted(broker: ScriptedBroker) -> None:
    with Client(broker.url) as client:
        client.create_topic(TOPIC)
        producer = client.producer(TOPIC)
        receipts = send_all(producer, 10)
        receipts[-1].result(timeout=60)
        broker.stop()
        receipts += send_all(producer, 10, start=10)
        assert not receipts[-1].done()
        broker.start()
        check(broker, receipts)
        producer.close()


def test_what_is_not_accepted_within_the_retry_timeout_fails(broker: ScriptedBroker) -> None:
    with Client(broker.url) as client:
        client.create_topic(TOPIC)
        producer = client.producer(TOPIC, retry_timeout=0.05)
        producer.send(b"0").result()
        broker.stop()
        with pytest.raises(UnavailableError, match="accepted nothing"):
            producer.send(b"1").result(timeout=60)
        producer.close()


def test_a_broker_that_never_answers_is_given_up_after_the_retry_timeout(
    client: Client, broker: ScriptedBroker
) -> None:
    producer = client.producer(TOPIC, retry_timeout=0.05)
    producer.send(b"0").result()
    broker.hold_acks()
    receipt = producer.send(b"1")
    with pytest.raises(UnavailableError, match="not known"):
        receipt.result(timeout=60)
    broker.release_acks()
    # Stored or not, it does not come back, and what follows is stored once.
    producer.send(b"2").result(timeout=60)
    stored = broker.payloads()
    assert stored[0] == b"0"
    assert stored[-1] == b"2"
    assert stored.count(b"2") == 1


def test_endless_retryable_errors_end_with_the_retry_timeout(client: Client, broker: ScriptedBroker) -> None:
    producer = client.producer(TOPIC, retry_timeout=0.05, name="mine")
    broker.faults.extend(["retry"] * 1_000_000)
    with pytest.raises(UnavailableError, match="try again"):
        producer.send(b"0").result(timeout=60)
    broker.faults.clear()
    assert producer.send(b"1").result(timeout=60) == 0


def test_flush_raises_a_failure_that_nobody_has_seen_and_only_once(client: Client, broker: ScriptedBroker) -> None:
    producer = client.producer(TOPIC)
    broker.faults.append("fatal")
    producer.send(b"0")
    with pytest.raises(InvalidMessageError):
        producer.flush()
    producer.flush()
    broker.faults.append("fatal")
    assert isinstance(producer.send(b"1").exception(timeout=60), InvalidMessageError)
    producer.close()


def test_faults_under_many_threads_and_producers(client: Client, broker: ScriptedBroker) -> None:
    topics = [f"default/n{number}" for number in range(8)]
    for topic in topics:
        client.create_topic(topic)
    broker.faults.extend(["lost_ack", None, "retry", None, None, "drop", None, "linger", None, None] * 20)
    results: dict[str, list[Receipt]] = {}

    def work(topic: str) -> None:
        with client.producer(topic, max_batch_messages=4) as producer:
            results[topic] = send_all(producer, 100)

    threads = [threading.Thread(target=work, args=(topic,)) for topic in topics]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for topic in topics:
        check(broker, results[topic], topic)
        assert len(broker.payloads(topic)) == 100
