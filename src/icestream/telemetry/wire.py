"""Turns serialized OTLP requests into nested Arrow arrays, one column a field.

Two libraries share the work. Protobuf's own parser checks every byte first and serializes the message again, so that
the next step sees only valid messages in their one normal form: the last of several values of a field, one member of a
`oneof`, valid UTF-8. Then `ptars` turns those bytes into Arrow without a Python object a row.

`ptars` reads the messages by descriptors that differ from the official ones in field types, never in the bytes on the
wire:

- attributes and log bodies are opaque bytes at first. A second call decodes them all at once, and keeps the bytes for
  the few that need them.
- of the members of a value only the four common ones are decoded. Arrays and maps nest without a bound, which Arrow
  columns cannot; these and other rare ones are decoded from the bytes one by one.
- unsigned numbers of 64 bits, times among them, are read as signed ones of the same bits: Iceberg has no others.
  Unsigned numbers of 32 bits that are written as varints become 64 bits wide.
"""

import json
from base64 import b64encode
from binascii import unhexlify
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from ptars import HandlerPool

from icestream.model.errors import InvalidMessageError
from icestream.telemetry.schemas import DEFAULTS, REQUESTS, ConversionOptions, Signal, check_limit

_OPAQUE = frozenset(
    {
        "Resource.attributes",
        "InstrumentationScope.attributes",
        "Span.attributes",
        "Event.attributes",
        "Link.attributes",
        "LogRecord.attributes",
        "LogRecord.body",
        "Metric.metadata",
        "NumberDataPoint.attributes",
        "HistogramDataPoint.attributes",
        "ExponentialHistogramDataPoint.attributes",
        "SummaryDataPoint.attributes",
        "Exemplar.filtered_attributes",
    }
)
_LEFT_OUT = frozenset(
    {"AnyValue.array_value", "AnyValue.kvlist_value", "AnyValue.bytes_value", "AnyValue.string_value_strindex"}
)
_SAME_BITS = {
    FieldDescriptorProto.TYPE_FIXED64: FieldDescriptorProto.TYPE_SFIXED64,
    FieldDescriptorProto.TYPE_UINT64: FieldDescriptorProto.TYPE_INT64,
    FieldDescriptorProto.TYPE_UINT32: FieldDescriptorProto.TYPE_INT64,
}


def _retype_fields(message: DescriptorProto) -> None:
    kept = [field for field in message.field if f"{message.name}.{field.name}" not in _LEFT_OUT]
    if len(kept) < len(message.field):
        del message.field[:]
        message.field.extend(kept)
    for field in message.field:
        if f"{message.name}.{field.name}" in _OPAQUE:
            field.type = FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")
            if field.label != FieldDescriptorProto.LABEL_REPEATED:
                _tell_absence(message, field)
        else:
            field.type = _SAME_BITS.get(field.type, field.type)
    for nested in message.nested_type:
        _retype_fields(nested)


def _tell_absence(message: DescriptorProto, field: FieldDescriptorProto) -> None:
    """Make an absent message differ from an empty one; bytes do not by default."""
    field.proto3_optional = True
    field.oneof_index = len(message.oneof_decl)
    message.oneof_decl.add(name=f"_{field.name}")


def _add_file(pool: DescriptorPool, file: FileDescriptor, done: set[str]) -> None:
    if file.name in done:
        return
    done.add(file.name)
    for dependency in file.dependencies:
        _add_file(pool, dependency, done)
    copy = FileDescriptorProto()
    file.CopyToProto(copy)
    for message in copy.message_type:
        _retype_fields(message)
    pool.Add(copy)


def _handlers() -> dict[str, Any]:
    pool: DescriptorPool = DescriptorPool()
    wanted = [request.DESCRIPTOR for request in REQUESTS.values()] + [KeyValue.DESCRIPTOR, AnyValue.DESCRIPTOR]
    done: set[str] = set()
    for descriptor in wanted:
        _add_file(pool, descriptor.file, done)
    handlers = HandlerPool([pool.FindFileByName(name) for name in sorted(done)])
    return {
        descriptor.full_name: handlers.get_for_message(pool.FindMessageTypeByName(descriptor.full_name))
        for descriptor in wanted
    }


_HANDLERS = _handlers()
_OF_SIGNAL = {signal: _HANDLERS[request.DESCRIPTOR.full_name] for signal, request in REQUESTS.items()}
_KEY_VALUE = _HANDLERS[KeyValue.DESCRIPTOR.full_name]
_ANY_VALUE = _HANDLERS[AnyValue.DESCRIPTOR.full_name]


def decode_request(signal: Signal, request: bytes) -> pa.StructArray:
    """Return the `ResourceSpans`, `ResourceLogs` or `ResourceMetrics` of a request."""
    try:
        normal = REQUESTS[signal].FromString(request).SerializeToString()
    except DecodeError as error:
        raise InvalidMessageError(
            f"the bytes are not an OTLP request of {signal}: {error}", operation="decode telemetry"
        ) from error
    return _decoded(_OF_SIGNAL[signal].list_to_record_batch, [normal]).column(0).values


def decode_key_values(raw: pa.Array) -> pa.RecordBatch:
    return _decoded(_KEY_VALUE.array_to_record_batch, raw)


def decode_values(raw: pa.Array) -> pa.RecordBatch:
    """Decode values. A null becomes a value without content."""
    return _decoded(_ANY_VALUE.array_to_record_batch, raw)


def _decoded(decode: Any, source: Any) -> pa.RecordBatch:
    try:
        return decode(source)
    except ValueError as error:
        raise InvalidMessageError(
            f"a part of the request cannot be decoded: {error}", operation="decode telemetry"
        ) from error


# OTLP's JSON form is protobuf's own with one difference: ids of traces and spans are hexadecimal, not base64. Unknown
# fields are ignored, as the specification asks. Field names in snake case, names of enum values and 64-bit numbers
# without quotes are accepted, because some exporters send them.

_IDS = frozenset({"trace_id", "span_id", "parent_span_id"})


def json_to_request(signal: Signal, text: bytes | str, options: ConversionOptions = DEFAULTS) -> bytes:
    """Return the serialized request that the text describes."""
    check_limit("bytes in the request", len(text), options.max_request_bytes)
    request = REQUESTS[signal]()
    try:
        tree = json.loads(text)
        _prepare(tree, request.DESCRIPTOR)
        data: bytes = ParseDict(tree, request, ignore_unknown_fields=True).SerializeToString()
    except (ValueError, ParseError, RecursionError) as error:
        raise InvalidMessageError(
            f"the text is not an OTLP request of {signal} in JSON: {error}", operation="decode telemetry"
        ) from error
    return data


def _prepare(tree: Any, descriptor: Descriptor) -> None:
    """Convert ids to base64 in place. Raise if a message is not an object: the library reads any text as an empty one.

    Uses a list and no recursion, because the sender chooses the depth of the text.
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


# A parser does not see where one of several joined requests ends. A field that announces more bytes than its request
# has would take them from the next request. So only a request that ends where its last field ends may be joined.

_RESOURCES = 0x0A
"""The tag of field 1, with a length: the one field that requests of all signals have."""
_MAX_LENGTH_BYTES = 5
_MAX_FIELDS = 1000
"""Most fields that are checked: enough for a large request, and fast."""


def is_whole(request: bytes) -> bool:
    """Return whether a request has only complete fields of resources, and not very many.

    Only the fields' lengths are checked, not their contents. A request with other fields, however legal, counts as not
    whole. Exporters do not send such fields.
    """
    at, end = 0, len(request)
    for _ in range(_MAX_FIELDS):
        if at == end:
            return True
        if request[at] != _RESOURCES:
            return False
        at = _end_of_field(request, at + 1)
        if at > end:
            return False
    return at == end


def _end_of_field(request: bytes, at: int) -> int:
    """Return where the field ends whose length is at `at`; after the request if there is no length."""
    length = 0
    for number, byte in enumerate(request[at : at + _MAX_LENGTH_BYTES]):
        length |= (byte & 0x7F) << (7 * number)
        if not byte & 0x80:
            return at + number + 1 + length
    return len(request) + 1
