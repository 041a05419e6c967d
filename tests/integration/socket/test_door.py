"""The socket door by hand: who gets in, what is refused, and what every message does."""

import os
import random
import socket

import msgspec
import pyarrow as pa
import pytest
from pydantic import SecretStr
from tests.integration.socket.conftest import OpenSite, SocketSite, receive

from icestream import Client
from icestream.client import socket as client_socket
from icestream.config import AuthSettings
from icestream.model.errors import UnavailableError
from icestream.model.messages import encode_message, is_compressed, message_batch, messages_of_frames
from icestream.protocol.publish import lone_message
from icestream.protocol.socket import (
    LENGTH,
    MessageKind,
    MessageSocket,
    batch_message,
    lone_messages,
    message,
    split_frames,
)

TOPIC = "default/events"
ACME, ROOT = "acme-token-1", "root-token-1"
BATCH = message_batch([b"a", b"b", b"c"])


def request(number: int = 0, **fields: object) -> bytes:
    return msgspec.json.encode({"topic": TOPIC, "id": number} | fields)


def lone(number: int = 0, payload: bytes = b"x", **fields: object) -> list[bytes]:
    return lone_messages(lone_message(request(number, **fields), encode_message(payload, None, None)))


class TestHello:
    def test_who_says_it_right_gets_in(self, site: SocketSite) -> None:
        _, response = site.hello()
        assert response == (MessageKind.HELLO, {"version": 1})

    @pytest.mark.parametrize(
        ("fields", "code"), [({"version": 2}, "invalid_request"), ({"broker": "another"}, "unavailable")]
    )
    def test_who_does_not_is_refused_and_hears_why(
        self, site: SocketSite, fields: dict[str, object], code: str
    ) -> None:
        peer, (kind, error) = site.hello(**fields)
        assert (kind, error["code"]) == (MessageKind.ERROR, code)
        assert receive(peer) == (None, None)

    def test_tokens_are_asked_for_and_open_their_own_namespace_only(self, open_site: OpenSite) -> None:
        site = open_site(ROOT, auth=AuthSettings(tokens=SecretStr(f"acme={ACME} *={ROOT}")))
        for token in (None, "wrong"):
            _, (kind, error) = site.hello(token=token)
            assert (kind, error["code"]) == (MessageKind.ERROR, "unauthenticated")
        peer, (kind, _) = site.hello(token=ACME)
        assert kind is MessageKind.HELLO
        peer.send(*lone(topic="acme/events"))
        peer.send(*lone(1, topic="globex/events"))
        assert receive(peer)[1]["base_offset"] == 0
        assert receive(peer)[1]["error"]["code"] == "permission_denied"
        reader, _ = site.hello(token=ACME)
        reader.send(message(MessageKind.READ, {"topic": "globex/events"}))
        assert receive(reader)[1]["code"] == "permission_denied"

    def test_a_long_first_message_is_refused_before_it_is_read(self, site: SocketSite) -> None:
        peer = site.connect()
        peer.send(LENGTH.pack(1 << 30) + bytes([MessageKind.HELLO]))
        kind, error = receive(peer)
        assert (kind, error["code"]) == (MessageKind.ERROR, "too_large")

    def test_bytes_of_another_protocol_end_the_connection(self, site: SocketSite) -> None:
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\0", os.urandom(64)):
            peer = site.connect()
            peer.send(data)
            peer.end()
        _, response = site.hello()
        assert response[0] is MessageKind.HELLO


class TestPublishing:
    def test_lone_messages_batches_and_parts_get_their_offsets(self, site: SocketSite) -> None:
        peer, _ = site.hello()
        peer.send(*lone(7))
        peer.send(*batch_message(request(8), BATCH))
        assert [receive(peer)[1] for _ in range(2)] == [
            {"id": 7, "base_offset": 0, "count": 1, "publish_time_us": pytest.approx(0, abs=1 << 62)},
            {"id": 8, "base_offset": 1, "count": 3, "publish_time_us": pytest.approx(0, abs=1 << 62)},
        ]
        parts = [{"count": 1, "id": 1}, {"count": 2, "id": 2}]
        peer.send(*batch_message(msgspec.json.encode({"topic": TOPIC, "parts": parts}), BATCH))
        assert [answer["base_offset"] for answer in receive(peer)[1]["answers"]] == [4, 5]
        assert [found.payload for found in site.client.consume(TOPIC)] == [b"x", b"a", b"b", b"c", b"a", b"b", b"c"]

    def test_a_repeated_batch_is_recognised(self, site: SocketSite) -> None:
        peer, _ = site.hello()
        for _ in range(2):
            peer.send(*lone(producer="p", sequence=0))
        assert [receive(peer)[1].get("duplicate", False) for _ in range(2)] == [False, True]

    def test_compressed_batches_are_refused_without_being_decompressed(self, site: SocketSite) -> None:
        bomb = message_batch([bytes(50_000_000)])
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, bomb.schema, options=options) as writer:
            writer.write_batch(bomb)
        stream = pa.ipc.MessageReader.open_stream(sink.getvalue())
        stream.read_next_message()
        data = stream.read_next_message().serialize()
        assert data.size < 50_000
        assert is_compressed(memoryview(data))

        class Compressed:
            def serialize(self) -> pa.Buffer:
                return data

        peer, _ = site.hello()
        peer.send(*batch_message(request(), Compressed()))
        kind, error = receive(peer)
        assert (kind, error["code"], error["message"]) == (
            MessageKind.ERROR,
            "invalid_message",
            "the batch is compressed",
        )

    @pytest.mark.parametrize("kind", [MessageKind.OUTCOME, MessageKind.FRAMES, 99])
    def test_a_message_that_makes_no_sense_ends_the_connection_with_the_reason(
        self, site: SocketSite, kind: int
    ) -> None:
        peer, _ = site.hello()
        peer.send(LENGTH.pack(3) + bytes([kind, 1, 2]))
        assert receive(peer)[0] is MessageKind.ERROR

    def test_a_message_beyond_the_limit_is_refused_before_it_is_read(self, open_site: OpenSite) -> None:
        site = open_site(server={"max_batch_bytes": 1 << 20, "max_message_bytes": 1 << 20})
        peer, _ = site.hello()
        peer.send(LENGTH.pack(1 << 30) + bytes([MessageKind.BATCH]))
        assert receive(peer)[1]["code"] == "too_large"

    def test_random_changes_of_good_messages_never_harm_the_broker(self, site: SocketSite) -> None:
        rng = random.Random(3)
        good = [b"".join(lone()), b"".join(bytes(part) for part in batch_message(request(), BATCH))]
        for _ in range(150):
            data = bytearray(rng.choice(good))
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            peer, _ = site.hello()
            peer.send(data)
            peer.end()
        peer, _ = site.hello()
        peer.send(*lone(payload=b"after"))
        assert "base_offset" in receive(peer)[1]


class TestReading:
    def read(self, site: SocketSite, **ticket: object) -> MessageSocket:
        peer, _ = site.hello()
        peer.send(message(MessageKind.READ, {"topic": TOPIC} | ticket))
        return peer

    def test_frames_come_as_the_log_has_them_and_then_the_end(self, site: SocketSite) -> None:
        with site.client.producer(TOPIC) as producer:
            producer.send(b"one", key=b"k", attributes={"a": "b"}).result()
            producer.send_batch(BATCH).result()
        peer = self.read(site, start=0)
        assert receive(peer) == (MessageKind.READ, {"offset": 0})
        kind, data = receive(peer)
        assert kind is MessageKind.FRAMES
        found = list(messages_of_frames(split_frames(data)))
        assert [(one.offset, one.payload) for one in found] == [(0, b"one"), (1, b"a"), (2, b"b"), (3, b"c")]
        assert (found[0].key, found[0].attributes) == (b"k", {"a": "b"})
        assert receive(peer)[0] is MessageKind.END

    def test_following_goes_on_until_the_topic_is_deleted(self, site: SocketSite) -> None:
        site.client.create_topic(TOPIC)
        peer = self.read(site, start=0, follow=True)
        assert receive(peer)[0] is MessageKind.READ
        with site.client.producer(TOPIC) as producer:
            for number in range(5):
                producer.send(b"%d" % number).result()
                assert receive(peer)[0] is MessageKind.FRAMES
        site.client.delete_topic(TOPIC)
        kind, error = receive(peer)
        assert (kind, error["code"]) == (MessageKind.ERROR, "topic_not_found")

    def test_a_topic_with_columns_of_its_own_is_left_to_flight(self, site: SocketSite) -> None:
        site.client.create_topic("default/own", pa.schema([("id", pa.int64())]))
        assert receive(self.read(site, topic="default/own"))[0] is MessageKind.END
        with site.client.producer("default/own") as producer:
            producer.send_batch(pa.table({"id": [1, 2]})).result()
        (batch,) = site.client.consume("default/own").batches()
        assert batch.column("id").to_pylist() == [1, 2]

    @pytest.mark.parametrize("ticket", [{"topic": "default/none"}, {"start": "x"}, {"nonsense": 1}])
    def test_a_bad_ticket_is_refused_with_the_reason(self, site: SocketSite, ticket: dict[str, object]) -> None:
        site.client.create_topic(TOPIC)
        assert receive(self.read(site, **ticket))[0] is MessageKind.ERROR


class TestLimits:
    def test_connections_are_bounded(self, open_site: OpenSite) -> None:
        site = open_site(server={"max_connections": 3})
        peers = [site.hello() for _ in range(3)]
        assert all(response[0] is MessageKind.HELLO for _, response in peers)
        refused = site.connect()
        assert refused.receive(10) is None
        peers[0][0].close()

    def test_a_stop_ends_connections_at_once(self, open_site: OpenSite) -> None:
        site = open_site()
        site.client.create_topic(TOPIC)
        reader, _ = site.hello()
        reader.send(message(MessageKind.READ, {"topic": TOPIC, "follow": True}))
        assert receive(reader)[0] is MessageKind.READ
        silent, _ = site.hello()
        site.broker.stop()
        assert silent.receive(10) is None
        last = receive(reader)
        assert last[0] in (None, MessageKind.ERROR)


class TestFallingBack:
    def test_without_the_door_clients_use_flight(self, open_site: OpenSite) -> None:
        site = open_site(server={"socket_port": -1})
        assert site.address is None
        with site.client.producer(TOPIC) as producer:
            producer.send(b"x").result()
        assert [found.payload for found in site.client.consume(TOPIC)] == [b"x"]

    def test_a_client_that_reaches_flight_by_another_port_stays_there(
        self, site: SocketSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = site.client.ping()
        told["socket"]["flight_port"] += 1
        with Client(site.client.url) as client:
            connection = client._connection
            monkeypatch.setattr(connection, "action", lambda *_, **__: told)
            assert connection.open_socket("read") is None

    def test_a_door_that_nobody_opens_is_not_waited_for(
        self, site: SocketSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = site.client.ping()
        told["socket"]["port"] = 1
        with Client(site.client.url) as client:
            connection = client._connection
            monkeypatch.setattr(connection, "action", lambda *_, **__: told)
            assert connection.open_socket("read") is None
            monkeypatch.setattr(connection, "action", None)
            assert connection.open_socket("read") is None, "it is not even asked for again, for a while"

    def test_another_version_of_the_protocol_is_left_to_flight(
        self, site: SocketSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_socket, "VERSION", 2)
        assert site.client._connection.open_socket("read") is None

    def test_a_broker_that_was_started_since_it_was_asked_is_asked_again(
        self, site: SocketSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = site.client.ping()
        told["socket"]["broker"] = "an earlier start"
        monkeypatch.setattr(site.client._connection, "action", lambda *_, **__: told)
        with pytest.raises(UnavailableError) as refusal:
            site.client._connection.open_socket("read")
        assert refusal.value.retryable


def test_a_reader_may_take_its_time(site: SocketSite) -> None:
    """With this option the kernel cuts off a reader whose buffers are full for so long."""
    peer = site.connect()
    assert peer._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
