"""An Arrow schema as text: base64 of its serialized form, as it stands in records, on the wire and in tables."""

import base64

import pyarrow as pa

from icestream.model.errors import InvalidRequestError


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def decode_schema(text: str) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, pa.ArrowException, OSError, TypeError) as error:
        raise InvalidRequestError(f"not a serialized Arrow schema: {error}", operation="schema") from error
