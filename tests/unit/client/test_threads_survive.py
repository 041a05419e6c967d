"""Errors that nobody expects reach those who wait: no thread of the client ends without a word."""

from typing import Any

import pyarrow as pa
import pytest

from icestream.client.consumer import Consumer
from icestream.client.endpoint import BrokerEndpoint
from icestream.client.subscription import AckBuffer, _offset
from icestream.client.transport import Connection, DoPutStream
from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.model.messages import MESSAGE_SCHEMA, STREAM_SCHEMA
from icestream.model.offsets import StartPosition
from icestream.protocol.subscribe import MAX_OFFSET


class Writer:
    def close(self) -> None:
        pass


class Acks:
    """What a stream of acknowledgements reads next, or raises."""

    def __init__(self, *items: bytes | Exception) -> None:
        self._items = list(items)

    def read(self) -> pa.Buffer | None:
        if not self._items:
            return None
        item = self._items.pop(0)
        if isinstance(item, Exception):
            raise item
        return pa.py_buffer(item)


def refuse_everything(_outcome: object) -> None:
    raise TypeError("an outcome that nobody understands")


@pytest.mark.parametrize("item", [OSError("the stream is cut"), b"{", b'{"id": 1}'])
def test_the_end_of_a_publish_stream_is_always_reported(
    item: bytes | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection(BrokerEndpoint("grpc://127.0.0.1:1"), timeout_s=1)
    monkeypatch.setattr(connection, "put", lambda _schema: (Writer(), Acks(item)))
    ends: list[IcestreamError] = []
    stream = DoPutStream(
        connection, MESSAGE_SCHEMA, on_outcome=refuse_everything, on_end=lambda _, error: ends.append(error)
    )
    stream.start()
    stream.join(60)
    (error,) = ends
    assert error.retryable


class Chunks:
    """A read whose stream has one batch with metadata that is not the protocol's, or that cannot be read."""

    schema = STREAM_SCHEMA

    def __init__(self, failure: Exception | None) -> None:
        self._failure = failure
        self.is_cancelled = False

    def read_chunk(self) -> Any:
        if self._failure is not None:
            raise self._failure
        return type("Chunk", (), {"data": STREAM_SCHEMA.empty_table(), "app_metadata": pa.py_buffer(b"{")})

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.mark.parametrize("failure", [None, OSError("not Arrow")])
@pytest.mark.parametrize("follow", [True, False])
def test_a_consumer_that_cannot_understand_the_broker_raises(
    failure: Exception | None, follow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection(BrokerEndpoint("grpc://127.0.0.1:1"), timeout_s=1)
    chunks = Chunks(failure)
    monkeypatch.setattr(connection, "get", lambda _ticket: chunks)
    monkeypatch.setattr(connection, "open_socket", lambda _operation: None)
    consumer = Consumer(connection, "a/b", StartPosition.earliest(), end=None, follow=follow, max_messages=None)
    with pytest.raises(IcestreamError, match="the consumer failed"):
        consumer.poll(timeout=60)
    assert chunks.is_cancelled
    assert consumer.ended
    consumer.close()


@pytest.mark.parametrize("offset", [-1, MAX_OFFSET, 1 << 63])
def test_an_offset_that_no_message_has_is_refused_at_once(offset: int) -> None:
    with pytest.raises(InvalidRequestError, match="not a message, batch or offset"):
        _offset(offset)


def test_the_highest_offset_can_be_sent() -> None:
    acks = AckBuffer()
    acks.ack(_offset(MAX_OFFSET - 1))
    assert acks.take().ranges == [(MAX_OFFSET - 1, MAX_OFFSET)]
