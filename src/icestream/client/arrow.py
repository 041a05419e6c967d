"""Arrow data from users, made into batches that the topic and the broker take."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from icestream.model.errors import InvalidMessageError, TooLargeError
from icestream.model.messages import check_batch, check_message_sizes


def to_batches(
    data: Any, schema: pa.Schema, *, max_batch_bytes: int, max_message_bytes: int
) -> Iterator[pa.RecordBatch]:
    """`data` as sound batches of `schema`, none larger than allowed. Columns that fit are not copied."""
    if not isinstance(data, pa.Table | pa.RecordBatch):
        raise InvalidMessageError(
            f"a batch is a pyarrow Table or RecordBatch, not {type(data).__name__}", operation="send_batch"
        )
    if not data.schema.equals(schema):
        data = _conform(data, schema)
    batches = data.to_batches() if isinstance(data, pa.Table) else [data]
    for batch in batches:
        check_batch(batch, schema)
        if batch.nbytes > max_message_bytes:
            check_message_sizes(batch, max_message_bytes)
        yield from _split(batch, max_batch_bytes)


def _conform(data: Any, schema: pa.Schema) -> Any:
    """The columns of `schema` by name, in its order, each cast where its type differs.

    One that is missing is null where it may be: a topic may have got columns since its senders were written.
    """
    names = data.schema.names
    if unknown := sorted(set(names) - set(schema.names)):
        raise InvalidMessageError(
            f"the topic has no column {', '.join(map(repr, unknown))}",
            operation="send_batch",
            remedy=f"its columns are {', '.join(schema.names)}",
        )
    columns = []
    for field in schema:
        if names.count(field.name) > 1:
            raise InvalidMessageError(f"column {field.name!r} is there twice", operation="send_batch")
        if field.name in names:
            columns.append(_cast(data.column(field.name), field))
        elif field.nullable:
            columns.append(pa.nulls(data.num_rows, field.type))
        else:
            raise InvalidMessageError(f"column {field.name!r} is missing", operation="send_batch")
    make = pa.Table if isinstance(data, pa.Table) else pa.RecordBatch
    return make.from_arrays(columns, schema=schema)


def _cast(column: Any, field: pa.Field) -> Any:
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidMessageError(
            f"column {field.name!r} is {column.type}, which does not become {field.type}: {error}",
            operation="send_batch",
        ) from error


def _split(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Slices of whole rows, each at most `max_bytes` on the wire; slices share the batch's memory."""
    if batch.num_rows == 0:
        return
    size = pa.ipc.get_record_batch_size(batch)
    if size <= max_bytes:
        yield batch
        return
    if batch.num_rows == 1:
        raise TooLargeError(f"a message has {size} bytes, the broker's limit is {max_bytes}", operation="send_batch")
    # A little more parts than the average needs, so that uneven rows seldom have to be halved again.
    rows = max(1, min(batch.num_rows // 2, int(batch.num_rows * max_bytes / size * 0.95)))
    for start in range(0, batch.num_rows, rows):
        yield from _split(batch.slice(start, rows), max_bytes)
