"""A Parquet bloom filter: which values a row group does not hold.

```
header                                              blocks, 32 bytes each
15 <bytes of all blocks> 1c1c0000 1c1c0000 1c1c0000 00 │ 8 words of 32 bits │ 8 words │ …
   zigzag varint         split block, xxHash64, uncompressed
```

A value's hash chooses a block with its upper half, and one bit of each word with its lower. A value that was put in has
all eight bits set; of others about one in a hundred has.
"""

import struct
from dataclasses import dataclass
from typing import Self

from xxhash import xxh64_intdigest

_BLOCK = struct.Struct("<8I")
_NUMBER_OF_BYTES = 0x15
_KIND = bytes.fromhex("1c1c0000 1c1c0000 1c1c0000 00")
_LOW = 0xFFFFFFFF
_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
_MAX_VARINT_BYTES = 5


@dataclass(frozen=True)
class BloomFilter:
    blocks: memoryview

    @classmethod
    def parse(cls, content: bytes | memoryview) -> Self | None:
        """None unless it is a filter of the one kind that there is so far."""
        content = memoryview(content)
        size, place = _number(content)
        if content[place : place + len(_KIND)] != _KIND:
            return None
        blocks = content[place + len(_KIND) :]
        if not len(blocks) or len(blocks) != size or size % _BLOCK.size:
            return None
        return cls(blocks)

    def may_hold(self, value: bytes) -> bool:
        """False only of a value that was not put in. The value is as Parquet stores it plainly, without its length."""
        digest = xxh64_intdigest(value)
        count = len(self.blocks) // _BLOCK.size
        words = _BLOCK.unpack_from(self.blocks, (((digest >> 32) * count) >> 32) * _BLOCK.size)
        low = digest & _LOW
        return all(word >> (((low * salt) & _LOW) >> 27) & 1 for word, salt in zip(words, _SALTS, strict=True))


def stored(value: object, physical_type: str) -> bytes | None:
    """A value as Parquet stores it; none for types about which filters are not asked."""
    if physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
        if isinstance(value, str):
            return value.encode()
        return value if isinstance(value, bytes) else None
    if type(value) is not int or physical_type not in ("INT32", "INT64"):
        return None
    nbytes = 4 if physical_type == "INT32" else 8
    try:
        return value.to_bytes(nbytes, "little", signed=True)
    except OverflowError:
        return None


def _number(content: memoryview) -> tuple[int, int]:
    """The number of bytes of all blocks, and where the rest of the header begins; nothing if there is no number."""
    if not len(content) or content[0] != _NUMBER_OF_BYTES:
        return 0, 0
    value = 0
    for place, byte in enumerate(content[1 : 1 + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            return 0 if value & 1 else value >> 1, place + 2  # odd ones are negative
    return 0, 0
