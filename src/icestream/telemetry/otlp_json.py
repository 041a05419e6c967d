"""OTLP's JSON form.

It is protobuf's own JSON form with one difference: ids of traces and spans are hexadecimal, not base64. Unknown fields
are passed over, as the specification asks. Names of fields in snake case, names of enum values and 64-bit numbers
without quotes are taken too: there are exporters that send them.
"""

import json
from base64 import b64encode
from binascii import unhexlify
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError

from icestream.model.errors import InvalidMessageError
from icestream.telemetry.options import DEFAULTS, Options, check_limit
from icestream.telemetry.signals import REQUESTS, Signal

_IDS = frozenset({"trace_id", "span_id", "parent_span_id"})


def json_to_request(signal: Signal, text: bytes | str, options: Options = DEFAULTS) -> bytes:
    """The serialized request that the text describes."""
    check_limit("bytes in the request", len(text), options.max_request_bytes)
    request = REQUESTS[signal]()
    try:
        tree = json.loads(text)
        _prepare(tree, request.DESCRIPTOR)
        data: bytes = ParseDict(tree, request, ignore_unknown_fields=True).SerializeToString()
    except (ValueError, ParseError, RecursionError) as error:
        raise InvalidMessageError(
            f"the text is no OTLP request of {signal} in JSON: {error}", operation="decode telemetry"
        ) from error
    return data


def _prepare(tree: Any, descriptor: Descriptor) -> None:
    """Ids to base64, in place; and a look that messages are objects, as the library takes any text for an empty one.

    It goes by a list of what is still to be seen, because the depth of the text is the sender's choice.
    """
    waiting: list[tuple[Any, Descriptor]] = [(tree, descriptor)]
    while waiting:
        node, kind = waiting.pop()
        if not isinstance(node, dict):
            raise ValueError(f"{kind.name} is not an object but {str(node)[:64]!r}")  # noqa: TRY004 - nor is the text a type
        for name, value in node.items():
            field = kind.fields_by_camelcase_name.get(name) or kind.fields_by_name.get(name)
            if field is None or value is None:
                continue
            if field.name in _IDS:
                node[name] = _base64(field, value)
            elif field.message_type is not None:
                parts = value if field.is_repeated and isinstance(value, list) else [value]
                waiting.extend((part, field.message_type) for part in parts)


def _base64(field: FieldDescriptor, text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError(f"{field.camelcase_name} is not text but {str(text)[:64]!r}")  # noqa: TRY004 - same
    try:
        return b64encode(unhexlify(text)).decode()
    except ValueError:
        raise ValueError(f"{field.camelcase_name} {text[:64]!r} is not hexadecimal") from None
