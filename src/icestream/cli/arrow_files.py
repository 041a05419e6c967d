"""A topic's schema from a file."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.model.errors import InvalidRequestError

_PARQUET_MAGIC = b"PAR1"
_ARROW_MAGIC = b"ARROW1"


def read_schema(path: Path) -> pa.Schema:
    """The Arrow schema in `path`: a serialized schema, an Arrow IPC file or stream, or a Parquet file."""
    with path.open("rb") as file:
        magic = file.read(len(_ARROW_MAGIC))
    try:
        if magic.startswith(_PARQUET_MAGIC):
            schema = pq.read_schema(path)
        elif magic == _ARROW_MAGIC:
            with pa.OSFile(str(path)) as source:
                schema = pa.ipc.open_file(source).schema
        else:
            with pa.OSFile(str(path)) as source:
                schema = pa.ipc.read_schema(source)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise InvalidRequestError(
            "no Arrow schema can be read from this file",
            operation="topic create",
            place=str(path),
            remedy="give a serialized Arrow schema, an Arrow IPC file or a Parquet file",
        ) from error
    return schema.remove_metadata()
