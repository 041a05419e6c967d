"""A bounded piece of a topic, and its messages as JSON."""

import base64
import re
from bisect import bisect_right
from typing import Any, NamedTuple

import pyarrow as pa

from icestream.model.errors import ClosedError, InvalidRequestError
from icestream.model.messages import Message, messages_of, slice_from
from icestream.model.offsets import StartPosition
from icestream.storage import IcebergStorage, Topic
from icestream.wal import LogState

_OTHER = re.compile(r"(earliest|latest|[0-9]{1,18}|snapshot:[0-9]{1,19}|tag:\S+)$", re.ASCII)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def parse_start(text: str) -> StartPosition:
    """As on the command line, but a time has to say its zone."""
    if _OTHER.match(text):
        return StartPosition.parse(text)
    try:
        if _RFC3339.fullmatch(text):
            return StartPosition.parse(text.upper())
    except InvalidRequestError:
        pass  # such as the 30th of February
    raise InvalidRequestError(
        f"start: {text!r} is not a start position",
        operation="read",
        remedy="use earliest, latest, an offset, an RFC 3339 time, in which + is written %2B, snapshot:ID or tag:NAME",
    )


class Piece(NamedTuple):
    schema: pa.Schema
    batches: list[pa.RecordBatch]
    next_offset: int
    durable_end: int


def read_piece(storage: IcebergStorage, topic: Topic, offset: int, *, max_messages: int, max_bytes: int) -> Piece:
    """Messages from an offset on: at most so many, and about so many bytes, but at least one if there is one."""
    if topic.log.state is LogState.CLOSED:
        storage.topic(topic.name)  # says so if it was deleted meanwhile
        raise ClosedError("the topic's log is closed", operation="read", place=str(topic.name))
    reader = topic.reader(StartPosition.offset(offset))
    end, room = offset + max_messages, max_bytes
    found: list[pa.RecordBatch] = []
    try:
        while offset < end and room > 0:
            batches = reader.read(room)
            if not batches:
                break
            for batch in batches:
                part = _fitting(slice_from(batch, 0, end), room, at_least=0 if found else 1)
                if part.num_rows:
                    found.append(part)
                    offset = part.column(0)[-1].as_py() + 1
                    room -= part.nbytes
                if part.num_rows < batch.num_rows:
                    room = 0
                    break
            else:
                offset = min(end, reader.offset)  # past messages that a repair gave up, too
    finally:
        reader.close()
    return Piece(topic.stream_schema, found, offset, topic.log.durable_end)


def _fitting(batch: pa.RecordBatch, max_bytes: int, *, at_least: int) -> pa.RecordBatch:
    """The first rows that fit."""
    if batch.nbytes <= max_bytes or batch.num_rows <= at_least:
        return batch
    rows = bisect_right(range(1, batch.num_rows + 1), max_bytes, key=lambda count: batch.slice(0, count).nbytes)
    return batch.slice(0, max(rows, at_least))


def piece_as_json(piece: Piece) -> dict[str, Any]:
    return {
        "messages": [message_as_json(message) for batch in piece.batches for message in messages_of(batch)],
        "next_offset": piece.next_offset,
        "durable_end": piece.durable_end,
    }


def message_as_json(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "offset": message.offset,
        "publish_time": message.publish_time.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "producer": message.producer,
        "sequence": message.sequence,
        "attributes": message.attributes,
    }
    if message.key is not None:
        _put_bytes(fields, "key", message.key)
    _put_bytes(fields, "payload", message.payload)
    return fields


def _put_bytes(fields: dict[str, Any], name: str, value: bytes) -> None:
    """As text where it is text."""
    try:
        fields[name] = value.decode()
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = base64.b64encode(value).decode()
