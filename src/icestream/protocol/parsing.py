"""Requests as structs: parsed once, by msgspec. A refusal names the field, what was given and what is allowed."""

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, inspect

from icestream.model.errors import InvalidRequestError

MAX_REQUEST_BYTES = 1 << 20
MAX_INT = (1 << 63) - 1
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INT)]
Int64: TypeAlias = Annotated[int, Meta(ge=-MAX_INT - 1, le=MAX_INT)]

Parsed = TypeVar("Parsed")
_MAX_SHOWN = 80
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_NAMED = re.compile(r"Object (?P<kind>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<type>[^`]+)`(?:, got `(?P<got>[^`]+)`)?(?P<bound>.*)", re.DOTALL)


class Request(Struct, forbid_unknown_fields=True):
    """What a client sends. Fields that the broker does not know are refused."""


class Response(Struct):
    """What a broker sends. Clients ignore fields that they do not know: a newer broker may add some."""


_decoders: dict[Any, Callable[[Any], Any]] = {}


def _decoder(kind: Any) -> Callable[[Any], Any]:
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.json.Decoder(kind).decode
    return found


def parse(data: bytes | bytearray | memoryview, kind: type[Parsed], *, operation: str, where: str = "") -> Parsed:
    """Return the request in `data`; no bytes mean an empty object. `where` says in errors what the bytes are."""
    if len(data) > MAX_REQUEST_BYTES:
        raise InvalidRequestError(f"the request has {len(data)} bytes, at most {MAX_REQUEST_BYTES} are allowed")
    return parse_unbounded(data or b"{}", kind, operation=operation, where=where)


def parse_unbounded(
    data: bytes | bytearray | memoryview, kind: type[Parsed], *, operation: str, where: str = ""
) -> Parsed:
    """Return the request in `data`, whose size the caller has checked."""
    try:
        parsed: Parsed = _decoder(kind)(data)
    except msgspec.ValidationError as error:
        try:
            given = json.loads(bytes(data))
        except (ValueError, RecursionError) as malformed:  # after the field that msgspec refuses
            raise _not_json(malformed, operation, where) from None
        raise refusal(str(error), given, kind, operation=operation, where=where) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(error, operation, where) from None
    return parsed


def convert(fields: Any, kind: type[Parsed], *, operation: str, where: str = "") -> Parsed:
    """Return plain data as a struct."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise refusal(str(error), fields, kind, operation=operation, where=where) from None


def given(request: Struct) -> dict[str, Any]:
    """Return the fields that a request gave, by their names on the wire. Fields that it may leave out are UNSET."""
    fields = ((field.encode_name, getattr(request, field.name)) for field in msgspec.structs.fields(request))
    return {name: value for name, value in fields if value is not UNSET}


def field_names(kind: Any) -> list[str]:
    """Return the names on the wire of a struct's fields."""
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def refusal(text: str, data: Any, kind: Any, *, operation: str, where: str = "") -> InvalidRequestError:
    """Return msgspec's error as an error of the protocol."""
    found = _AT.match(text)
    assert found is not None
    what, steps = found["what"], _steps(found["path"] or "$", data)
    remedy, named = "", _NAMED.fullmatch(what)
    if named is not None:
        steps.append(named["name"])
        problem = "is missing" if named["kind"].startswith("missing") else "is not known here"
        allowed = _type_at(inspect.type_info(kind), steps[:-1])
        if isinstance(allowed, inspect.StructType) and problem != "is missing":
            names = [field.encode_name for field in allowed.fields]
            remedy = f"use {', '.join(names)}" if names else "send an empty object"
    else:
        problem = f"{_rule(what, kind, steps)}, not {_shown(data, steps)}"
    field = _shorten(".".join(map(str, steps)))
    return InvalidRequestError(
        f"{_prefix(where)}{field or 'the request'} {problem}",
        operation=operation,
        remedy=remedy,
        details={"problems": [{"field": field, "problem": problem}]},
    )


def _not_json(error: Exception, operation: str, where: str) -> InvalidRequestError:
    text = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return InvalidRequestError(f"{_prefix(where)}not JSON: {_shorten(text)}", operation=operation)


def _prefix(where: str) -> str:
    return f"{where}: " if where else ""


def _steps(path: str, data: Any) -> list[str | int]:
    """Return a path's names and indexes. msgspec does not tell the key of an object of texts: find it in the data."""
    steps: list[str | int] = []
    for name, index in _STEP.findall(path):
        step: str | int = name or (int(index) if index != "..." else index)
        if step == "..." and isinstance(data, dict):
            step = next((key for key, value in data.items() if not isinstance(value, str)), step)
        data = data[step] if _has(data, step) else None
        steps.append(step)
    return steps


def _has(data: Any, step: str | int) -> bool:
    if isinstance(data, dict):
        return step in data
    # Of a key that is there twice, msgspec checks both values and `json` keeps the last: an index may not fit it.
    return isinstance(data, list) and isinstance(step, int) and step < len(data)


def _rule(what: str, kind: Any, steps: list[str | int]) -> str:
    """Return what is allowed, as a phrase after the field's name."""
    if (expected := _EXPECTED.fullmatch(what)) is not None:
        return f"must be {expected['type']}{expected['bound']}"
    allowed = _type_at(inspect.type_info(kind), steps)
    if isinstance(allowed, inspect.EnumType):
        return f"must be one of {', '.join(str(member.value) for member in allowed.cls)}"
    if isinstance(allowed, inspect.LiteralType):
        return f"must be one of {', '.join(map(str, allowed.values))}"
    return what


def _type_at(kind: Any, steps: list[str | int]) -> Any:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        found = [_type_at(member, steps) for member in kind.types]
        kinds = [one for one in found if one is not None and not isinstance(one, inspect.NoneType)]
        return kinds[0] if kinds else None
    if not steps:
        return kind
    if isinstance(kind, inspect.StructType):
        inner = next((field.type for field in kind.fields if field.encode_name == steps[0]), None)
    elif isinstance(kind, inspect.DictType):
        inner = kind.value_type
    else:
        inner = getattr(kind, "item_type", None)
    return None if inner is None else _type_at(inner, steps[1:])


def _shown(data: Any, steps: list[str | int]) -> str:
    """Return the value at a path, shortened; what lies deeper than a path tells is not shown."""
    for step in steps:
        if not _has(data, step):
            break
        data = data[step]
    return _shorten(json.dumps(data, ensure_ascii=False, default=str))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
