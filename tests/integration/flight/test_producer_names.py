"""Producers of several clients that are opened under one name: nothing that was acknowledged is missing."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import permutations

import pyarrow.flight as fl
import pytest
from tests.integration.flight.conftest import Running
from tests.integration.flight.plain import PlainClient, messages

from icestream.client import Client, Producer
from icestream.model.errors import IcestreamError, InvalidRequestError, ProducerFencedError

TOPIC = "flight/names"


@pytest.fixture
def clients(running: Running) -> Iterator[list[Client]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Client(running.address)) for _ in range(3)]


def opened(client: Client, *, exclusive: bool = True) -> Producer:
    return client.producer(TOPIC, name="orders", exclusive=exclusive)


def payloads(client: Client) -> list[bytes]:
    found: list[bytes] = client.read(TOPIC)["payload"].to_pylist()
    return found


def test_the_one_that_was_opened_last_goes_on_and_the_other_is_told(clients: list[Client]) -> None:
    first, second = clients[:2]
    older = opened(first)
    older.send(b"1").result()
    newer = opened(second)
    newer.send(b"2").result()
    with pytest.raises(ProducerFencedError, match="'orders' was opened after this one"):
        older.send(b"lost?").result()
    with pytest.raises(ProducerFencedError):
        older.send(b"and from then on")
    newer.send(b"3").result()
    with suppress(IcestreamError):
        older.close()
    newer.close()
    assert payloads(first) == [b"1", b"2", b"3"]


def test_a_batch_is_refused_too_and_other_producers_of_the_client_go_on(clients: list[Client]) -> None:
    first, second = clients[:2]
    older, beside = opened(first), first.producer(TOPIC)
    newer = opened(second)
    with pytest.raises(ProducerFencedError):
        older.send_batch(messages(b"x", b"y")).result()
    beside.send(b"1").result()
    newer.send_batch(messages(b"2", b"3")).result()
    assert payloads(first) == [b"1", b"2", b"3"]


def test_the_older_one_is_told_though_the_broker_has_forgotten_who_was_last(
    running: Running, clients: list[Client]
) -> None:
    older, newer = opened(clients[0]), opened(clients[1])
    newer.send(b"1").result()
    running.storage.topic(TOPIC).log._sessions._newest.clear()  # as a restart does
    with pytest.raises(ProducerFencedError, match="has used this producer's sequences"):
        older.send(b"passes for a repetition").result()
    with pytest.raises(ProducerFencedError):
        older.send(b"and from then on")
    assert payloads(clients[2]) == [b"1"]


def test_a_client_opens_a_name_twice_only_to_share_it(clients: list[Client]) -> None:
    with opened(clients[0]), pytest.raises(InvalidRequestError, match="has a producer 'orders' open"):
        opened(clients[0])
    with opened(clients[0], exclusive=False) as one, opened(clients[0], exclusive=False) as other:
        assert one.send(b"x").result() == other.send(b"x").result() == 0


def test_only_the_last_of_several_is_acknowledged_whoever_sends_first(clients: list[Client]) -> None:
    acknowledged: list[bytes] = []
    for turn, order in enumerate(permutations(clients)):
        *older, newest = [opened(client) for client in order]
        for place, producer in enumerate(older):
            with pytest.raises(ProducerFencedError, match="'orders' was opened after this one"):
                producer.send(b"older %d-%d" % (turn, place)).result()
        for place in range(2):
            payload = b"newest %d-%d" % (turn, place)
            newest.send(payload).result()
            acknowledged.append(payload)
        for producer in (*older, newest):
            with suppress(ProducerFencedError):
                producer.close()
    assert payloads(clients[0]) == acknowledged


def test_what_many_acknowledge_under_one_name_is_all_there(clients: list[Client]) -> None:
    acknowledged: list[list[bytes]] = [[] for _ in clients]

    def work(number: int) -> None:
        for turn in range(10):
            with suppress(ProducerFencedError), opened(clients[number]) as producer:
                for place in range(5):
                    payload = b"%d-%d-%d" % (number, turn, place)
                    producer.send(payload).result()
                    acknowledged[number].append(payload)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = payloads(clients[0])
    assert len(set(stored)) == len(stored)
    told = [payload for payloads_of_one in acknowledged for payload in payloads_of_one]
    assert len(told) >= 5  # those of the last that was opened, at least
    assert set(told) <= set(stored)
    for mine in acknowledged:
        assert [payload for payload in stored if payload in set(mine)] == mine


def test_those_that_share_a_name_have_each_number_stored_once(clients: list[Client]) -> None:
    with opened(clients[0], exclusive=False) as one, opened(clients[1], exclusive=False) as other:
        for place in range(5):
            numbers = {producer.send(b"%d" % place).result() for producer in (one, other)}
            assert numbers == {place}
    assert payloads(clients[2]) == [b"0", b"1", b"2", b"3", b"4"]


def test_parts_have_sessions_of_their_own(client: PlainClient) -> None:
    stream = client.publishing()
    client.action("open_producer", topic=TOPIC, producer="a", session=7)
    parts = [
        {"producer": "a", "sequence": 0, "session": 6, "count": 1, "id": 0},
        {"producer": "a", "sequence": 0, "session": 7, "count": 1, "id": 1},
        {"producer": "b", "sequence": 0, "session": 6, "count": 1, "id": 2},
    ]
    answers = stream.publish(messages(b"x", b"y", b"z"), topic=TOPIC, parts=parts)["answers"]
    codes = {each["id"]: each["error"]["code"] if "error" in each else None for each in answers}
    assert codes == {0: "producer_fenced", 1: None, 2: None}
    assert client.read(topic=TOPIC)["payload"].to_pylist() == [b"y", b"z"]


@pytest.mark.parametrize("session", [-1, 1 << 63, "x", True])
def test_a_session_that_is_none_is_refused(client: PlainClient, session: object) -> None:
    answer = client.publishing().publish(messages(b"x"), topic=TOPIC, producer="a", sequence=0, session=session)
    assert answer["error"]["code"] == "invalid_request"
    with pytest.raises(fl.FlightServerError, match="session"):
        client.action("open_producer", topic=TOPIC, producer="a", session=session)
