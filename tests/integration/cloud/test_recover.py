"""`icestream topic recover` as a user meets it: a broker on a fresh disk, the same object store and catalog."""

import json
import threading

import pytest
from tests.integration.cloud.brokers import Site

from icestream.client import Client
from icestream.model.errors import InvalidRequestError, LogLostError

TOPIC = "default/events"
PATIENCE = 60.0


def payloads(first: int, count: int) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


def take(client: Client, count: int) -> list[int]:
    """Offsets of the next messages of a subscription, which are acknowledged."""
    with client.subscribe(TOPIC, "readers") as subscription:
        found: list[int] = []
        while len(found) < count:
            message = subscription.receive(PATIENCE)
            assert message is not None
            subscription.ack(message)
            found.append(message.offset)
        subscription.flush()
        return found


def test_subscriptions_go_on_where_they_were(site: Site) -> None:
    site.publish(TOPIC, payloads(0, 10), flush=True)
    with site.client() as client:
        assert take(client, 4) == [0, 1, 2, 3]
    site.publish(TOPIC, payloads(10, 2))
    site.broker.kill()
    site.lose_disk(keep_metadata=True)
    site.broker.start()
    with site.client() as client:
        with pytest.raises(LogLostError):
            client.read(TOPIC)
        reported = json.loads(site.command("topic", "recover", TOPIC, "--json"))["topics"][0]
        assert (reported["start_offset"], reported["lost_first"]) == (10, 10)
        site.publish(TOPIC, [b"new"])
        assert take(client, 7) == [*range(4, 10), reported["next_offset"]]


def test_all_topics_of_a_lost_disk_come_back(site: Site) -> None:
    topics = [f"default/t{number}" for number in range(5)]
    for topic in topics:
        site.publish(topic, payloads(0, 3), flush=True)
    site.broker.terminate()
    site.lose_disk(keep_metadata=False)
    site.broker.start()
    reports = json.loads(site.command("topic", "recover", "--all", "--json"))["topics"]
    assert [report["topic"] for report in reports] == topics
    assert all((report["lost_first"], report["unreadable"]) == (3, []) for report in reports)
    with site.client() as client:
        for topic in topics:
            assert client.read(topic)["payload"].to_pylist() == payloads(0, 3)
        with pytest.raises(InvalidRequestError, match="nothing to recover"):
            client.recover_topic(topics[0])


def test_a_topic_whose_table_is_ahead_of_the_cloud_goes_on_behind_the_table(site: Site) -> None:
    site.publish(TOPIC, payloads(0, 5), flush=True)
    site.publish(TOPIC, payloads(5, 5))
    site.drain()
    site.broker.kill()
    site.lose_disk(keep_metadata=False)
    site.broker.start()
    with site.client() as client:
        report = client.recover_topic(TOPIC)
        assert (report["committed_offset"], report["start_offset"]) == (10, 10)
        assert report["cloud_end"] in (5, 10)  # 10 if a second cycle was due already, which a busy machine began late
        assert client.read(TOPIC)["payload"].to_pylist() == payloads(0, 10)
        site.publish(TOPIC, [b"new"], flush=True)
        assert client.read(TOPIC)["payload"].to_pylist() == [*payloads(0, 10), b"new"]
    site.drain()
    assert site.rows(TOPIC).column("payload").to_pylist() == [*payloads(0, 10), b"new"]


def test_a_topic_without_a_table_comes_back_too(site: Site) -> None:
    with site.client() as client:
        client.create_topic(TOPIC, storage="log")
        site.publish(TOPIC, payloads(0, 5), flush=True)
        site.publish(TOPIC, payloads(5, 5))
    site.broker.kill()
    site.lose_disk(keep_metadata=False)
    site.broker.start()
    with site.client() as client:
        report = client.recover_topic(TOPIC)
        assert (report["committed_offset"], report["start_offset"]) == (None, 5)
        assert client.describe_topic(TOPIC).storage == "log"
        assert client.read(TOPIC)["payload"].to_pylist() == payloads(0, 5)


def test_readers_that_wait_see_what_comes_after_the_recovery(site: Site) -> None:
    site.publish(TOPIC, payloads(0, 5), flush=True)
    site.broker.terminate()
    site.lose_disk(keep_metadata=True)
    site.broker.start()
    with site.client() as client:
        client.recover_topic(TOPIC)
        publishing = threading.Thread(target=site.publish, args=(TOPIC, payloads(5, 2)))
        with client.consume(TOPIC, start=3, follow=True) as consumer:
            messages = iter(consumer)
            seen = [next(messages).payload]
            publishing.start()
            seen += [next(messages).payload for _ in range(3)]
        publishing.join()
    assert seen == payloads(3, 4)
