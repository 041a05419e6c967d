"""What an Arrow expression is made of, which Arrow itself does not tell: it only serializes them.

The serialized form is a batch. Its columns hold the literals and the options of functions; its schema's metadata
spells the expression out, as pairs in order::

    call and_kleene
      call greater_equal · field_ref offset · literal 0 · end greater_equal
      call is_in · field_ref name · options 1 · end is_in
    end and_kleene

The same key comes many times, so the pairs are read through Arrow's C data interface, which keeps them all.
"""

import ctypes
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class FieldRef:
    name: str


@dataclass(frozen=True)
class Call:
    function: str
    arguments: "tuple[Expression, ...]"
    options: pa.Scalar | None


Expression: TypeAlias = "FieldRef | Call | pa.Scalar | None"
"""None stands for what is not known here."""


class _CSchema(ctypes.Structure):
    """The beginning of an `ArrowSchema` of the C data interface, and room for the rest of it."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
        ("rest", ctypes.c_char * 128),
    )


def read_expression(expression: pc.Expression) -> Expression:
    """The expression's parts; None if it is not written as it is known here."""
    try:
        _, (serialized,) = expression.__reduce__()
        batch = pa.ipc.open_file(serialized).get_batch(0)
        return _Parts(batch, _metadata(batch.schema)).read()
    except (ValueError, KeyError, IndexError, TypeError, pa.ArrowException):
        return None


class _Parts:
    def __init__(self, batch: pa.RecordBatch, pairs: list[tuple[str, str]]) -> None:
        self._batch = batch
        self._pairs = pairs[::-1]

    def read(self) -> Expression:
        kind, text = self._pairs.pop()
        match kind:
            case "field_ref":
                return FieldRef(text)
            case "nested_field_ref":
                for _ in range(int(text)):
                    self.read()
                return None
            case "literal":
                return self._batch.column(int(text))[0]
            case "call":
                return self._call(text)
        raise ValueError(kind)

    def _call(self, function: str) -> Expression:
        arguments: list[Expression] = []
        options = None
        while (kind := self._pairs[-1][0]) != "end":
            if kind == "options":
                options = self._batch.column(int(self._pairs.pop()[1]))[0]
            else:
                arguments.append(self.read())
        self._pairs.pop()
        return Call(function, tuple(arguments), options)


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    exported = _CSchema()
    schema._export_to_c(ctypes.addressof(exported))  # noqa: SLF001 - the name that the C data interface has in pyarrow
    try:
        return _pairs(exported.metadata)
    finally:
        pa.Schema._import_from_c(ctypes.addressof(exported))  # noqa: SLF001 - who imports it frees it


def _pairs(address: int | None) -> list[tuple[str, str]]:
    """A count, then for each key and value its length and its bytes."""
    if not address:
        return []

    def number() -> int:
        nonlocal address
        assert address is not None
        found = ctypes.c_int32.from_address(address).value
        address += 4
        return found

    def text() -> str:
        nonlocal address
        length = number()
        assert address is not None
        found = ctypes.string_at(address, length)
        address += length
        return found.decode()

    return [(text(), text()) for _ in range(number())]
