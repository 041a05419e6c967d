"""What `icestream demo` publishes, and how it knows the same when it comes back."""

import random
from zlib import crc32

import pyarrow as pa

PAYLOAD_BYTES = 250
_NUMBER = b"%012d "
_NUMBER_BYTES = 13
_filler = random.Random(1).randbytes(64 * 1024).hex().encode()  # noqa: S311 - the same every time, on purpose


def payload(index: int) -> bytes:
    """Message `index`: its number, and text that differs from its neighbours'."""
    place = index * 31 % (len(_filler) - PAYLOAD_BYTES)
    return _NUMBER % index + _filler[place : place + PAYLOAD_BYTES - _NUMBER_BYTES]


class Tally:
    """Counts messages, sees whether each follows on the last, and sums their bytes up into one number."""

    def __init__(self) -> None:
        self.count = 0
        self.checksum = 0
        self.in_order = True

    def add(self, payloads: list[bytes]) -> None:
        self.checksum = crc32(b"".join(payloads), self.checksum)
        self.count += len(payloads)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """A batch as a consumer gets it."""
        offsets = batch.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        self.in_order &= first == self.count and last - first + 1 == batch.num_rows
        self.add(batch.column("payload").to_pylist())
