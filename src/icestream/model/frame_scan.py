"""Walking over frames that lie one behind the other, in a segment or in a cloud object."""

from collections.abc import Iterator
from typing import Protocol

from icestream.model.frame_bytes import Bytes, Complete, Decoded, Incomplete, decode

_READ_BYTES = 1 << 20


class Readable(Protocol):
    def read(self, length: int, position: int, /) -> Bytes:
        """Fewer bytes only where the file ends."""


class Scan:
    """Walks a file's frames from a position on, with bounded memory; `stop` says why it ended, and `position` where.

    `stop` is None when the limit was reached exactly, else the undecodable outcome at `position`. With `one_read` it
    also ends, without a stop, when a frame was found and the next one would need another read.
    """

    def __init__(
        self,
        file: Readable,
        position: int,
        limit: int,
        *,
        seed: int,
        read_bytes: int = _READ_BYTES,
        one_read: bool = False,
    ) -> None:
        self._file = file
        self._seed = seed
        self._limit = limit
        self._read_bytes = read_bytes
        self._one_read = one_read
        self.position = position
        self.stop: Decoded | None = None

    def __iter__(self) -> Iterator[tuple[int, Complete]]:
        """Each frame with its position. Bodies are slices of the buffer that was read."""
        buffer, start = memoryview(b""), self.position
        while self.position < self._limit:
            seed = self._seed + self.position
            outcome = decode(buffer, self.position - start, seed)
            if isinstance(outcome, Incomplete):
                if self._one_read and self.position > start:
                    return
                buffer, start = self._read(outcome.needed), self.position
                outcome = decode(buffer, 0, seed)
                if isinstance(outcome, Incomplete) and outcome.needed <= self._limit - self.position:
                    buffer = self._read(outcome.needed)  # the header has told how long the frame is
                    outcome = decode(buffer, 0, seed)
            if not isinstance(outcome, Complete):
                self.stop = outcome
                return
            found = self.position
            self.position = start + outcome.end
            yield found, outcome

    def _read(self, needed: int) -> memoryview:
        length = min(max(needed, self._read_bytes), self._limit - self.position)
        return memoryview(self._file.read(length, self.position))
