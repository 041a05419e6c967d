"""A model of a log: it records what was sent and acknowledged, and checks what the log holds.

Every batch has unique bytes, so that a frame found after a crash is either exactly one that was sent, or wrong.
"""

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from icestream.model.messages import Frame
from icestream.wal import Append, Files, Log, LogContext, LogOptions, LogReader, Payload, Pool, StreamInfo, prepare

STREAM = StreamInfo("tests/topic", UUID(int=7))
DIRECTORY = Path("/data/tests/topic")


class Batch(NamedTuple):
    producer: str
    sequence: int
    message_count: int
    body: bytes

    def payload(self) -> Payload:
        return prepare(
            self.body,
            message_count=self.message_count,
            encoding=1,
            producer=self.producer,
            sequence=self.sequence,
        )


class Kept(NamedTuple):
    """A batch that a log must keep, and its offset."""

    base_offset: int
    batch: Batch

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.batch.message_count


@dataclass
class LogModel:
    """What was sent to a log, and what of it the log must hold from now on."""

    kept: tuple[Kept, ...] = ()
    sent: dict[bytes, Batch] = field(default_factory=dict)
    """By their bytes, the batches that may be in the log: those kept, and those not answered yet."""
    made: int = 0

    @property
    def end_offset(self) -> int:
        return self.kept[-1].end_offset if self.kept else 0

    def copy(self) -> "LogModel":
        return replace(self, sent=dict(self.sent))

    def new_batch(self, producer: str, message_count: int, nbytes: int) -> Batch:
        """The producer's next batch, of about `nbytes`. It counts as sent."""
        self.made += 1
        body = random.Random(self.made).randbytes(nbytes) + self.made.to_bytes(4)
        last = next((sent for sent in reversed(self.sent.values()) if producer and sent.producer == producer), None)
        sequence = last.sequence + last.message_count if last else 0
        return self.send(Batch(producer, sequence, message_count, body))

    def send(self, batch: Batch) -> Batch:
        """Note that a batch goes to the log, perhaps not for the first time."""
        self.sent.setdefault(batch.body, batch)
        return batch

    def acknowledge(self, batch: Batch, base_offset: int, *, duplicate: bool = False) -> None:
        """The log has said that it keeps the batch at this offset."""
        earlier = self.find(batch)
        if duplicate:
            assert earlier is not None, f"{_name(batch)} was called a duplicate and never was acknowledged before"
            assert earlier.base_offset == base_offset, f"{_name(batch)} moved from offset {earlier.base_offset}"
            return
        assert earlier is None or not batch.producer, f"{_name(batch)} was stored twice"
        assert base_offset == self.end_offset, f"{_name(batch)} got offset {base_offset}, expected {self.end_offset}"
        self.kept = (*self.kept, Kept(base_offset, batch))

    def find(self, batch: Batch) -> Kept | None:
        return next((kept for kept in reversed(self.kept) if kept.batch == batch), None)

    def check(self, log: Log) -> None:
        """The log holds everything it must; what it holds beyond was sent to it, and must be kept from now on.

        What was sent and is not there is given up: it must not turn up later, unless it is sent again.
        """
        frames = read_all(log)
        kept = [one for one in self.kept if one.base_offset >= log.start_offset]
        assert len(frames) >= len(kept), (
            f"{len(kept)} frames up to offset {self.end_offset} were acknowledged, "
            f"{len(frames)} are there, up to {log.durable_end}"
        )
        expected_offset = log.start_offset
        for place, frame in enumerate(frames):
            assert frame.base_offset == expected_offset, f"offset {frame.base_offset} follows on {expected_offset - 1}"
            batch = self.sent.get(bytes(frame.body))
            assert batch is not None, f"the frame at offset {expected_offset} was never sent"
            assert batch == Batch(frame.producer, frame.sequence, frame.message_count, batch.body)
            if place < len(kept):
                assert batch == kept[place].batch, f"other bytes than acknowledged at offset {expected_offset}"
            else:
                self.acknowledge(batch, frame.base_offset)
            expected_offset = frame.end_offset
        assert expected_offset == log.durable_end
        self.sent = {kept.batch.body: kept.batch for kept in self.kept}
        self._check_producers(log)

    def _check_producers(self, log: Log) -> None:
        expected = {kept.batch.producer: kept.batch.sequence + kept.batch.message_count for kept in self.kept}
        expected.pop("", None)
        for producer, sequence in expected.items():
            assert log.next_sequence(producer) == sequence, f"{producer} is not remembered"


class ManualPool:
    """Runs what is submitted when told to, so that a test decides what is committed together."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], None], /) -> None:
        self._waiting.append(work)

    def run(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()


def open_log(files: Files, options: LogOptions, pool: Pool | None = None) -> Log:
    """The log on these files, made if it is not there; its clock ticks once for each question."""
    ticks = itertools.count(1_700_000_000_000_000, 1000)
    context = LogContext(files, options=options, clock=lambda: next(ticks), pool=pool)
    return Log.create(context, DIRECTORY, STREAM)


def read_all(log: Log, offset: int | None = None) -> list[Frame]:
    reader = LogReader(log, log.start_offset if offset is None else offset)
    frames: list[Frame] = []
    while found := reader.read():
        frames += found
    reader.close()
    return frames


def submit_together(log: Log, model: LogModel, batches: Iterable[Batch]) -> list[Append]:
    """Queue batches that nobody waits for; each is acknowledged in the model once the log says so."""

    def done(batch: Batch) -> Callable[[Append], None]:
        def answer(append: Append) -> None:
            if append.error is None:
                model.acknowledge(batch, append.base_offset, duplicate=append.duplicate)

        return answer

    return [log.submit(batch.payload(), done(batch), inline=False) for batch in batches]


def _name(batch: Batch) -> str:
    return f"the batch {batch.producer or 'of nobody'}:{batch.sequence}"
