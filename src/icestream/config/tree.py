"""The settings as data: each with its key, environment variable, type, bounds and default.

The reference, the checks of keys and the error messages use this, so they always agree.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from icestream.config.fields import Allowed, DefaultText, OtherName, Section, Unit, masked, union_members
from icestream.config.settings import Settings
from icestream.model.units import GIB, KIB, MIB, TIB

Keys = tuple[str, ...]
Mark = TypeVar("Mark")

ENV_PREFIX = "ICESTREAM_"
ENV_DELIMITER = "__"

# Sections that documented files nest under another root.
DOCUMENTED_ROOTS: dict[Keys, Keys] = {
    ("storage", "iceberg_config"): ("catalog", "object_store", "wal", "writer", "reader"),
    ("wal_cloud",): ("wal", "uploader", "cloud", "metadata"),
}

_KINDS: dict[object, str] = {bool: "true or false", Path: "a path", SecretStr: "secret text"}
_UNITS = {
    "_ms": "milliseconds",
    "_bytes": "bytes",
    "_mb": "MiB",
    "_seconds": "seconds",
    "_minutes": "minutes",
    "_hours": "hours",
}


@dataclass(frozen=True)
class Leaf:
    """One setting."""

    path: Keys
    info: FieldInfo

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return ENV_PREFIX + ENV_DELIMITER.join(self.path).upper()

    @property
    def description(self) -> str:
        return self.info.description or ""

    @property
    def types(self) -> tuple[object, ...]:
        """The types it accepts, without `Annotated`."""
        members = union_members(self.info.annotation)
        return tuple(get_args(member)[0] if get_origin(member) is Annotated else member for member in members)

    @property
    def secret(self) -> bool:
        return SecretStr in self.types

    @property
    def optional(self) -> bool:
        return NoneType in self.types

    @property
    def mapping(self) -> bool:
        return any(get_origin(kind) is dict for kind in self.types)

    @property
    def other_names(self) -> tuple[str, ...]:
        return tuple(mark.key for mark in self.info.metadata if isinstance(mark, OtherName))

    @property
    def unit(self) -> str:
        mark = self._mark(Unit)
        if mark is not None:
            return mark.text
        return next((unit for suffix, unit in _UNITS.items() if self.path[-1].endswith(suffix)), "")

    @property
    def bounds(self) -> dict[str, float]:
        """Those of `ge`, `gt` and `le` that are set."""
        found = ((name, getattr(mark, name, None)) for mark in self.info.metadata for name in ("ge", "gt", "le"))
        return {name: value for name, value in found if value is not None}

    @property
    def allowed(self) -> str:
        """What it accepts, as a phrase after "takes"."""
        mark = self._mark(Allowed)
        if mark is not None:
            return mark.text
        kinds = [kind for kind in self.types if kind is not NoneType]
        text = " or ".join(self._allowed_kind(kind) for kind in kinds)
        return f"{text}, or null" if self.optional else text

    @property
    def default(self) -> str:
        """The default, as written in YAML."""
        mark = self._mark(DefaultText)
        if mark is not None:
            return mark.text
        value = masked(self.info.default)
        if isinstance(value, int) and self.unit == "bytes":
            return self._amount(value)
        if value is None:
            return "none"
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _mark(self, kind: type[Mark]) -> Mark | None:
        return next((mark for mark in self.info.metadata if isinstance(mark, kind)), None)

    def _allowed_kind(self, kind: object) -> str:
        values = list(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else get_args(kind)
        if isinstance(values, list) or get_origin(kind) is Literal:
            choices = [str(choice) for choice in values]
            return "one of " + ", ".join(choices) if len(choices) > 1 else choices[0]
        if get_origin(kind) is dict:
            return "a mapping of text to text"
        if kind in (int, float):
            return self._allowed_number("an integer" if kind is int else "a number")
        return _KINDS.get(kind, "text")

    def _allowed_number(self, noun: str) -> str:
        bounds = self.bounds
        text = f"{noun} of {self.unit}" if self.unit else noun
        if "ge" in bounds:
            text += f" from {self._amount(bounds['ge'])}"
        if "gt" in bounds:
            text += f" above {self._amount(bounds['gt'])}"
        if "le" in bounds:
            text += (
                f" to {self._amount(bounds['le'])}" if "ge" in bounds else f" and up to {self._amount(bounds['le'])}"
            )
        return text

    def _amount(self, number: float) -> str:
        if self.unit == "bytes":
            for size, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
                if number >= size and number % size == 0:
                    return f"{number} ({number // size:g} {name})"
        return str(number)


@dataclass
class Branch:
    """A level of nested keys. Two names of one setting have the same leaf."""

    children: dict[str, "Branch | Leaf"] = field(default_factory=dict)


def _branch(model: type[BaseModel], path: Keys) -> Branch:
    branch = Branch()
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            branch.children[name] = _branch(kind, (*path, name))
        else:
            branch.children[name] = Leaf((*path, name), info)
    return branch


def find(branch: Branch, path: Keys) -> Branch | Leaf | None:
    """Return the branch or leaf at `path`, or None."""
    found: Branch | Leaf | None = branch
    for name in path:
        found = found.children.get(name) if isinstance(found, Branch) else None
    return found


def _leaves(branch: Branch) -> list[Leaf]:
    found: list[Leaf] = []
    for child in branch.children.values():
        found += _leaves(child) if isinstance(child, Branch) else [child]
    return found


@lru_cache(maxsize=1)
def leaves() -> tuple[Leaf, ...]:
    """Return every setting once, in the order of the reference."""
    return tuple(_leaves(_branch(Settings, ())))


@lru_cache(maxsize=1)
def named_tree() -> Branch:
    """Return the keys for environment and flags: each setting by all of its names."""
    root = _branch(Settings, ())
    for leaf in leaves():
        for name in leaf.other_names:
            *parents, last = name.split(".")
            parent = find(root, tuple(parents))
            assert isinstance(parent, Branch)
            parent.children[last] = leaf
    return root


@lru_cache(maxsize=1)
def file_tree() -> Branch:
    """Return the keys for a file: those of `named_tree`, also under the documented roots."""
    named = named_tree()
    root = Branch(
        {name: Branch(dict(c.children)) if isinstance(c, Branch) else c for name, c in named.children.items()}
    )
    for path, sections in DOCUMENTED_ROOTS.items():
        parent = find(root, path[:-1])
        assert isinstance(parent, Branch)
        parent.children[path[-1]] = Branch({section: named.children[section] for section in sections})
    return root
