"""Serialized OTLP requests to nested Arrow arrays, one column a field.

Two libraries share the work. Protobuf's own parser looks at every byte first and writes the message anew, so that what
follows sees only sound messages in their one normal form: the last of several values of a field, one member of a
`oneof`, valid UTF-8. Then `ptars` turns those bytes into Arrow without any object a row.

It reads the messages by descriptors that differ from the official ones in how they name the bytes, never in what lies
on the wire:

- attributes and log bodies are opaque bytes at first. A second call decodes them all at once, and the bytes are at hand
  for the few that need them.
- of the members of a value only the four common ones are decoded. Arrays and maps nest without end, which Arrow columns
  do not; those and the rare others are read from the bytes in a second look.
- unsigned numbers of 64 bits, times among them, are signed ones of the same bits, as Iceberg has no other. Unsigned
  numbers of 32 bits that are written as varints become 64 bits wide.
"""

from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from ptars import HandlerPool

from icestream.model.errors import InvalidMessageError
from icestream.telemetry.signals import REQUESTS, Signal

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


def _rename_bytes(message: DescriptorProto) -> None:
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
        _rename_bytes(nested)


def _tell_absence(message: DescriptorProto, field: FieldDescriptorProto) -> None:
    """A message that is not there differs from an empty one; for bytes that has to be asked for."""
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
        _rename_bytes(message)
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
    """The `ResourceSpans`, `ResourceLogs` or `ResourceMetrics` of a request."""
    try:
        normal = REQUESTS[signal].FromString(request).SerializeToString()
    except DecodeError as error:
        raise InvalidMessageError(
            f"the bytes are no OTLP request of {signal}: {error}", operation="decode telemetry"
        ) from error
    return _decoded(_OF_SIGNAL[signal].list_to_record_batch, [normal]).column(0).values


def decode_key_values(raw: pa.Array) -> pa.RecordBatch:
    return _decoded(_KEY_VALUE.array_to_record_batch, raw)


def decode_values(raw: pa.Array) -> pa.RecordBatch:
    """A null is decoded like a value without content."""
    return _decoded(_ANY_VALUE.array_to_record_batch, raw)


def _decoded(decode: Any, source: Any) -> pa.RecordBatch:
    try:
        return decode(source)
    except ValueError as error:
        raise InvalidMessageError(
            f"a part of the request cannot be decoded: {error}", operation="decode telemetry"
        ) from error
