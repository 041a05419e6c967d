"""The decoded tail that a topic's readers share."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from icestream.model.messages import MESSAGE_SCHEMA, Encoding, Frame, check_and_encode, message_batch, stream_batches
from icestream.reader.log_tier import Tail, Tails
from icestream.wal.cache import FrameCache, LogCache


class Topic:
    """A log's cache with frames of one batch each, and a tail that counts what it decodes."""

    def __init__(self, tails: Tails, cache: FrameCache | None = None) -> None:
        self.cache: LogCache = (cache or FrameCache(1 << 30, 1 << 30)).log_cache()
        self.decoded = 0
        self.tail: Tail = tails.tail(self.cache, self._decode)
        self._end = 0

    def add(self, count: int = 1, size: int = 10, *, single: bool = False) -> None:
        messages = message_batch([b"x" * size] * count)
        encoding, body = (
            check_and_encode(messages, MESSAGE_SCHEMA) if single else (Encoding.ARROW_IPC, messages.serialize())
        )
        self.cache.add([Frame(self._end, count, 0, 0, "", 0, encoding, 0, memoryview(body))])
        self._end += count

    def _decode(self, frames: list[Frame]) -> Iterator[pa.RecordBatch]:
        self.decoded += len(frames)
        return stream_batches(frames, {0: MESSAGE_SCHEMA})

    def read(self, offset: int, max_bytes: int = 1 << 20) -> list[int] | None:
        """The offsets that come from the tail; None if the reader has to look elsewhere."""
        shared = self.tail.read(offset, max_bytes)
        if shared is None:
            return None
        offsets = [value for batch in shared.batches for value in batch.column(0).to_pylist()]
        assert offsets[-1] + 1 == shared.end_offset
        return offsets


@pytest.fixture
def topic() -> Topic:
    return Topic(Tails(1 << 20))


def test_what_one_reader_decodes_serves_all(topic: Topic) -> None:
    for _ in range(5):
        topic.add(2)
    for offset in (0, 5, 9):
        assert topic.read(offset) == list(range(10))  # the batch that holds it
    assert topic.decoded == 5
    topic.add()
    assert topic.read(10) == topic.read(0) == list(range(11))  # joined with what was there
    assert topic.decoded == 6


def test_batches_before_the_offset_are_left_out(topic: Topic) -> None:
    for single in (True, True, False, False):  # one piece, in which each encoding is a batch
        topic.add(single=single)
    assert topic.read(0) == topic.read(1) == [0, 1, 2, 3]
    assert topic.read(2) == topic.read(3) == [2, 3]


def test_nothing_is_there_beyond_the_end_or_outside_the_cache(topic: Topic) -> None:
    assert topic.read(0) is None
    topic.add()
    assert topic.read(1) is None
    assert topic.read(0) == [0]


def test_a_reader_behind_the_tail_decodes_for_itself(topic: Topic) -> None:
    for _ in range(10):
        topic.add()
    assert topic.read(6) == [6, 7, 8, 9]
    assert topic.read(2) is None
    assert topic.read(6) == [6, 7, 8, 9]
    assert topic.decoded == 4


def test_a_reader_ahead_of_the_tail_begins_it_anew(topic: Topic) -> None:
    topic.add()
    assert topic.read(0) == [0]
    for _ in range(5):
        topic.add()
    assert topic.read(4) == [4, 5]
    assert topic.read(0) is None


def test_a_piece_is_about_as_large_as_asked_for(topic: Topic) -> None:
    for _ in range(4):
        topic.add(size=100_000)
        topic.read(topic._end - 1)
    assert topic.read(0, max_bytes=1) == [0]
    assert topic.read(0, max_bytes=150_000) == [0, 1]


def test_many_small_pieces_come_as_few_batches(topic: Topic) -> None:
    for offset in range(100):
        topic.add()
        topic.read(offset)
    shared = topic.tail.read(0, 1 << 20)
    assert shared is not None
    assert len(shared.batches) == 1
    assert shared.batches[0].num_rows == 100


def test_all_tails_together_are_bounded() -> None:
    tails = Tails(1_000_000)
    first, second = Topic(tails), Topic(tails)
    for _ in range(20):
        for topic in (first, second):
            topic.add(size=100_000)
            assert topic.read(topic._end - 1) == [topic._end - 1]
            assert tails.nbytes <= 1_000_000
    assert first.read(19) == [19]
    assert first.tail.read(0, 1) is None
    first.tail.clear()
    second.tail.clear()
    assert tails.nbytes == 0


def test_without_room_every_reader_decodes_for_itself() -> None:
    topic = Topic(Tails(0))
    topic.add()
    assert topic.read(0) == [0]
    assert topic.read(0) == [0]
    assert topic.decoded == 2


def test_readers_at_once_get_the_same(topic: Topic) -> None:
    failures: list[object] = []

    def follow() -> None:
        offset = 0
        while offset < 2_000:
            found = topic.read(offset)
            if found is None:
                continue
            expected = list(range(found[0], found[-1] + 1))
            if found != expected or found[0] > offset:
                failures.append(found)
            offset = found[-1] + 1

    threads = [threading.Thread(target=follow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(500):
        topic.add(4)
    for thread in threads:
        thread.join()
    assert not failures
