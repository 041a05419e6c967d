"""The last batches of each producer, so that a repeated batch is recognised, also after a restart.

A producer numbers its messages from 0 without gaps. A batch carries the number of its first message, its sequence. The
log remembers the newest batches of each producer, at least as many as a client may have in flight. The number of
producers is bounded: the one that was silent for longest is forgotten first.

If messages of the log were lost, a producer may have sent some of them. Its next batch may then skip sequences.
"""

import json
from collections import OrderedDict, deque
from pathlib import Path
from typing import NamedTuple

import xxhash

from icestream.model.errors import ProducerFencedError, SequenceError
from icestream.model.messages import Encoding, Frame
from icestream.wal.files import Files, write_file

REMEMBERED_BATCHES = 16
_LOST = ""
"""The name under which a saved state holds the end of lost messages. No producer has this name."""


class SentBatch(NamedTuple):
    sequence: int
    message_count: int
    base_offset: int
    publish_time_us: int


class Producers:
    def __init__(self, max_producers: int) -> None:
        self._max_producers = max_producers
        self._sent: OrderedDict[str, deque[SentBatch]] = OrderedDict()
        self.lost_end = 0
        """Messages before this offset were lost; 0 if none were."""

    def __len__(self) -> int:
        return len(self._sent)

    def next_sequence(self, producer: str) -> int:
        sent = self._sent.get(producer)
        return sent[-1].sequence + sent[-1].message_count if sent else 0

    def find(self, producer: str, sequence: int, message_count: int) -> SentBatch | None:
        """Return the stored batch that this one repeats, or None if it is the next. Raise if it is neither."""
        sent = self._sent.get(producer)
        if not sent:
            return None
        expected = sent[-1].sequence + sent[-1].message_count
        if sequence == expected or (sequence > expected and sent[-1].base_offset < self.lost_end):
            return None
        for earlier in reversed(sent):
            if earlier.sequence == sequence and earlier.message_count == message_count:
                return earlier
        raise SequenceError(
            f"producer {producer!r} sent a batch of {message_count} with sequence {sequence}, expected is {expected}",
            operation="publish",
            remedy="send again from the first batch that was not acknowledged"
            if sequence > expected
            else "the batch differs from the one stored with this sequence, or is too old; do not send it again",
            details={"expected": expected, "sequence": sequence},
        )

    def note(self, producer: str, sent: SentBatch) -> None:
        batches = self._sent.get(producer)
        if batches is None:
            batches = self._sent[producer] = deque(maxlen=REMEMBERED_BATCHES)
        batches.append(sent)
        self._sent.move_to_end(producer)
        if len(self._sent) > self._max_producers:
            self._sent.popitem(last=False)

    def note_frame(self, frame: Frame) -> None:
        """Note a frame that is read from the log."""
        if frame.encoding == Encoding.LOST:
            self.note_lost(frame.end_offset)
        elif frame.producer:
            sent = SentBatch(frame.sequence, frame.message_count, frame.base_offset, frame.publish_time_us)
            self.note(frame.producer, sent)

    def before(self, offset: int) -> "Producers":
        """Return a copy without the batches from an offset on: those may not be durable yet."""
        earlier = Producers(self._max_producers)
        earlier.lost_end = self.lost_end
        for name, batches in self._sent.items():
            for sent in batches:
                if sent.base_offset < offset:
                    earlier.note(name, sent)
        return earlier

    def to_bytes(self) -> bytes:
        state: list[tuple[str, list[SentBatch]]] = [(name, list(batches)) for name, batches in self._sent.items()]
        if self.lost_end:
            state.append((_LOST, [SentBatch(0, 0, self.lost_end, 0)]))
        data = json.dumps(state, separators=(",", ":")).encode()
        return xxhash.xxh3_64_digest(data) + data

    def take_bytes(self, data: bytes) -> bool:
        """Add a saved state. Return False if its bytes are damaged."""
        if xxhash.xxh3_64_digest(data[8:]) != data[:8]:
            return False
        for name, batches in json.loads(data[8:]):
            for fields in batches:
                sent = SentBatch(*fields)
                if name == _LOST:
                    self.note_lost(sent.base_offset)
                else:
                    self.note(name, sent)
        return True

    def note_lost(self, end_offset: int) -> None:
        """Note that messages before an offset were lost."""
        self.lost_end = max(self.lost_end, end_offset)

    def save(self, files: Files, path: Path) -> None:
        """Write the state before a segment's first frame, durably.

        Recovery can rebuild it from the segments before, but only as long as retention has not removed them.
        """
        write_file(files, path, [self.to_bytes()])

    def load(self, files: Files, path: Path) -> bool:
        """Add the state in a file. Return False if it is missing or damaged."""
        try:
            data = files.read_bytes(path)
        except FileNotFoundError:
            return False
        return self.take_bytes(data)


class ProducerSessions:
    """Which of the producers opened under one name may send: the one opened last.

    Two producers that count under one name would take each other's messages for repetitions of their own. So each
    opened producer has a session, a number above 0. Once a later session is open, earlier ones are refused.
    Session 0 is for producers that share a name and its sequence on purpose: the first to send a number has it stored.

    Sessions are kept in memory only. In a broker that has just started, the first producer to send owns the name. If
    that is the earlier one, the broker can take its message for a repetition of the later one's. The client knows that
    it has repeated nothing, and does not accept such an acknowledgement. The number of names is bounded; the name that
    was opened longest ago is forgotten first.
    """

    def __init__(self, max_producers: int) -> None:
        self._max_producers = max_producers
        self._newest: OrderedDict[str, int] = OrderedDict()

    def open(self, producer: str, session: int) -> None:
        self._newest[producer] = session
        self._newest.move_to_end(producer)
        if len(self._newest) > self._max_producers:
            self._newest.popitem(last=False)

    def check(self, producer: str, session: int) -> None:
        """Raise if another session has the name."""
        newest = self._newest.get(producer)
        if newest is None:
            self.open(producer, session)
        elif newest != session:
            raise ProducerFencedError(
                f"another producer {producer!r} was opened after this one",
                operation="publish",
                remedy="give each producer its own name, or none; batches that this one has sent may be stored",
            )
