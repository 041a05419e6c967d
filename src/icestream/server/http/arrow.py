"""Arrow IPC streams as bodies."""

import struct
from collections.abc import Iterable

import pyarrow as pa

from icestream.model.errors import InvalidMessageError

_RECORD_BATCH_COMPRESSION = 3
_MESSAGE_HEADER = 2
_EARLY_COMPRESSION = b"ARROW:experimental_compression"  # how Arrow marked it before there was a field for it
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, struct.error)


def read_stream(body: bytearray, *, operation: str) -> pa.RecordBatch:
    """The messages of a stream as one batch.

    Compressed buffers are refused: a few bytes of them can fill the memory before anything can be checked. Nothing is
    joined before it was validated: Arrow trusts lengths and offsets that a hostile client made up.
    """
    try:
        source = pa.py_buffer(body)
        for message in pa.ipc.MessageReader.open_stream(source):
            _check_message(message, operation)
        with pa.ipc.open_stream(source) as reader:
            _ = reader.schema.names  # raises where one is not UTF-8
            batches = [batch for batch in reader if batch.num_rows]
        for batch in batches:
            batch.validate(full=True)
        if not batches:
            raise _invalid("the stream holds no messages", operation)
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    except _ARROW_ERRORS as error:
        raise _invalid(f"not an Arrow IPC stream: {str(error)[:500]}", operation) from None


def _check_message(message: pa.ipc.Message, operation: str) -> None:
    if message.type == "dictionary":
        raise _invalid("dictionary-encoded columns are not taken", operation)
    if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
        raise _invalid("compressed Arrow buffers are not taken: write the stream uncompressed", operation)


def _is_compressed(metadata: bytes) -> bool:
    """Whether a record batch's header has its compression field. Arrow has verified the flatbuffer's bounds before."""
    if _EARLY_COMPRESSION in metadata:
        return True
    message = struct.unpack_from("<I", metadata)[0]
    header = _field(metadata, message, _MESSAGE_HEADER)
    if not header:
        return False
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return bool(_field(metadata, batch, _RECORD_BATCH_COMPRESSION))


def _field(data: bytes, table: int, index: int) -> int:
    """Where a flatbuffer table has a field; 0 where it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    place = 4 + 2 * index
    if place >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + place)[0])
    return table + offset if offset else 0


def _invalid(message: str, operation: str) -> InvalidMessageError:
    return InvalidMessageError(message, operation=operation)


def write_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())
