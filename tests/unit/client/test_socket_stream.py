"""Who reads the acknowledgements of a publishing connection: the thread that waits for one, or the stream's own."""

import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from icestream.client.publisher import Outbox, PendingBatch
from icestream.client.socket import SocketStream
from icestream.model.errors import IcestreamError, UnavailableError
from icestream.protocol.publish import PublishOutcome
from icestream.protocol.socket import MessageKind, MessageSocket, message

PATIENCE_SECONDS = 60.0


class Line:
    """A stream, and the broker's end of its connection."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        mine = socket.create_connection(listener.getsockname())
        self.broker = MessageSocket(listener.accept()[0])
        listener.close()
        lock = threading.Lock()
        outbox = Outbox("a/b", lock, name="p", new_name=None)
        self.batches = {number: PendingBatch(outbox) for number in range(100)}
        self.readers: list[str] = []
        self.ends: list[IcestreamError] = []
        self.has_ended = threading.Event()
        self.stream = SocketStream(MessageSocket(mine), "grpc://x", on_outcome=self._settle, on_end=self._end)

    def _settle(self, outcome: PublishOutcome) -> None:
        assert outcome.id is not None
        self.readers.append(threading.current_thread().name)
        self.batches[outcome.id].succeed(0, 0, None)
        self.batches[outcome.id].announce()

    def _end(self, _stream: object, error: IcestreamError) -> None:
        self.ends.append(error)
        self.has_ended.set()

    def acknowledge(self, number: int) -> None:
        self.broker.send(message(MessageKind.OUTCOME, {"id": number, "base_offset": number}))

    def close(self) -> None:
        self.broker.end()
        self.stream.finish()
        self.stream.join(PATIENCE_SECONDS)
        self.broker.close()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    made.stream.start()
    yield made
    made.close()


def test_what_nobody_waits_for_is_read(line: Line) -> None:
    for number in range(3):
        line.acknowledge(number)
        assert line.batches[number].wait(PATIENCE_SECONDS)
    assert line.readers == ["icestream-acks"] * 3


def test_a_thread_that_waits_again_and_again_reads_for_itself(line: Line) -> None:
    me = threading.current_thread().name
    number = 0
    while me not in line.readers:  # the stream's own thread leaves the socket after the first one that it sees waiting
        batch = line.batches[number]
        acknowledge = threading.Timer(0.001, line.acknowledge, (number,))
        acknowledge.start()
        line.stream.read_for(batch, None)
        assert batch.wait(PATIENCE_SECONDS)
        number += 1
        assert number < len(line.batches)
    assert line.stream.acks_read == number


def test_it_reads_what_comes_before_its_own(line: Line) -> None:
    line.stream._others_read_at = 1e12  # as if others had just read
    line.acknowledge(0)
    assert line.batches[0].wait(PATIENCE_SECONDS)
    for number in (1, 2, 3):
        line.acknowledge(number)
    line.stream.read_for(line.batches[3], None)
    assert all(line.batches[number].done for number in range(4))


def test_it_waits_no_longer_than_it_is_told(line: Line) -> None:
    line.stream._others_read_at = 1e12
    line.acknowledge(0)
    assert line.batches[0].wait(PATIENCE_SECONDS)
    line.stream.read_for(line.batches[1], 0.01)
    assert not line.batches[1].done


@pytest.mark.parametrize("is_waiting", [True, False])
def test_the_end_is_reported_once_whoever_notices_it(line: Line, is_waiting: bool) -> None:
    if is_waiting:
        line.stream._others_read_at = 1e12
        line.acknowledge(0)
        assert line.batches[0].wait(PATIENCE_SECONDS)
    error = UnavailableError("the broker is stopping", operation="publish")
    line.broker.send(message(MessageKind.ERROR, msgspec.to_builtins(error.to_dict())))
    line.broker.end()
    if is_waiting:
        line.stream.read_for(line.batches[1], None)
        line.stream._others_read_at = 0.0
    assert line.has_ended.wait(PATIENCE_SECONDS)
    assert [type(end) for end in line.ends] == [UnavailableError]
    assert "stopping" in str(line.ends[0])
