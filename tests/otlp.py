"""OTLP requests for tests: arbitrary ones made from the descriptors, and what grouping leaves of them."""

from typing import Any

import hypothesis.strategies as st
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from icestream.telemetry import Signal
from icestream.telemetry.schemas import REQUESTS

MAX_ITEMS = 3
MAX_DEPTH = 4

_TEXT = st.text(max_size=6) | st.sampled_from(["", "a", "service.name", "é\u0000\U0001f600"])
_KEYS = st.sampled_from(["a", "b", "service.name", "http.method", ""]) | st.text(max_size=3)
_BYTES = st.binary(max_size=4) | st.binary(min_size=16, max_size=16)
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: _TEXT,
    FieldDescriptor.TYPE_BYTES: _BYTES,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SFIXED64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED64: st.integers(0, 2**64 - 1) | st.just(1_700_000_000_123_456_789),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 6) | st.integers(-(2**31), 2**31 - 1),
}


def requests(signal: Signal) -> st.SearchStrategy[Any]:
    """Any request of the signal, all fields of all messages included."""
    return _messages(REQUESTS[signal].DESCRIPTOR, MAX_DEPTH)


@st.composite
def _messages(draw: st.DrawFn, descriptor: Descriptor, depth: int) -> Message:
    made: Message = GetMessageClass(descriptor)()
    alternatives = [oneof for oneof in descriptor.oneofs if len(oneof.fields) > 1]
    chosen = {draw(st.sampled_from([None, *oneof.fields])) for oneof in alternatives}
    for field in descriptor.fields:
        if field.containing_oneof in alternatives:
            if field in chosen:
                _fill(draw, made, field, depth)
        elif field.is_repeated or not field.has_presence or draw(st.booleans()):
            _fill(draw, made, field, depth)
    return made


def _fill(draw: st.DrawFn, made: Message, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is not None:
        nested = field.message_type.name in {"ArrayValue", "KeyValueList"}
        if nested and depth == 0:
            return
        inner = _messages(field.message_type, depth - nested)
        if field.is_repeated:
            getattr(made, field.name).extend(draw(st.lists(inner, max_size=MAX_ITEMS)))
        else:
            getattr(made, field.name).CopyFrom(draw(inner))
            getattr(made, field.name).SetInParent()
        return
    values = _KEYS if field.name == "key" else _SCALARS[field.type]
    if field.is_repeated:
        getattr(made, field.name).extend(draw(st.lists(values, max_size=MAX_ITEMS)))
    else:
        setattr(made, field.name, draw(values))


_SHAPES: dict[Signal, tuple[str, str, str]] = {
    Signal.TRACES: ("resource_spans", "scope_spans", "spans"),
    Signal.LOGS: ("resource_logs", "scope_logs", "log_records"),
    Signal.METRICS: ("resource_metrics", "scope_metrics", "metrics"),
}


def grouped(signal: Signal, request: Any) -> Any:
    """The same request with each resource, scope and metric once, and without those that hold nothing."""
    outer, inner, items = _SHAPES[signal]
    made = REQUESTS[signal]()
    for resource in getattr(request, outer):
        for scope in getattr(resource, inner):
            for item in getattr(scope, items):
                if signal is Signal.METRICS and not points_of(item):
                    continue
                group = _same(getattr(made, outer), _without(resource, inner))
                home = getattr(_same(getattr(group, inner), _without(scope, items), but=items), items)
                if signal is Signal.METRICS:
                    _merge_metric(home, item)
                else:
                    home.append(item)
    return made


def points_of(metric: Any) -> Any:
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind else []


def _merge_metric(home: Any, metric: Any) -> None:
    head = type(metric)()
    head.CopyFrom(metric)
    del points_of(head)[:]
    for other in home:
        bare = type(metric)()
        bare.CopyFrom(other)
        del points_of(bare)[:]
        if as_bytes(bare) == as_bytes(head):
            points_of(other).extend(points_of(metric))
            return
    home.append(metric)


def _without(message: Any, field: str) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    copy.ClearField(field)
    return copy


def _same(home: Any, wanted: Any, but: str = "") -> Any:
    """The message in the list that says the same as `wanted`, appended if there is none."""
    lists = but or next(field.name for field in wanted.DESCRIPTOR.fields if field.name.startswith("scope_"))
    for other in home:
        if as_bytes(_without(other, lists)) == as_bytes(wanted):
            return other
    home.append(wanted)
    return home[-1]


def as_bytes(message: Message) -> bytes:
    """What to compare: two NaNs are never equal, their bytes are."""
    return message.SerializeToString(deterministic=True)
