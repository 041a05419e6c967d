"""A frame: one published batch, with the fields that the log adds."""

from typing import Any, NamedTuple

MESSAGES_SCHEMA_ID = 0


class Frame(NamedTuple):
    """The header's fields and the undecoded body, a slice of a larger buffer."""

    base_offset: int
    message_count: int
    publish_time_us: int
    epoch: int
    producer: str
    sequence: int
    encoding: int
    schema_id: int
    body: Any

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.message_count

    @property
    def nbytes(self) -> int:
        return len(self.body)
