"""Parts of the section classes: base class, field types, marks for the reference, secrets, and errors."""

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationInfo, field_validator

# Secrets are hidden wherever settings are shown: repr, errors, `config show`

MASK = "**********"

_SECRET_NAME = re.compile(r"secret|passw|pwd|token|credential|key|auth|connection.?string|\bsig\b", re.IGNORECASE)
# Up to the last `@`, so that a password with an unescaped `/` or `@` is hidden whole.
_USERINFO = re.compile(r"(://[^:@/\s]*):.*@", re.DOTALL)
_QUERY = re.compile(
    r"([?&;](?:[^=&;\s]*(?:secret|passw|pwd|token|credential|key|auth)[^=&;\s]*|sig)=)[^&;\s]*", re.IGNORECASE
)


def looks_secret(name: str) -> bool:
    """Return whether a free-form property of this name likely holds a secret."""
    return _SECRET_NAME.search(name) is not None


def mask_text(text: str) -> str:
    """Return `text` without the password in a URI and without secret query parameters."""
    return _QUERY.sub(rf"\1{MASK}", _USERINFO.sub(rf"\1:{MASK}@", text))


def masked(value: object) -> object:
    """Return `value` as plain data for YAML and JSON, with secrets hidden."""
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, str | Path):
        return mask_text(str(value))
    if isinstance(value, Mapping):
        return {str(name): MASK if looks_secret(str(name)) else masked(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return value


@dataclass(frozen=True)
class OtherName:
    """A second name of a field, as a dotted key from the root. Files, environment and flags may use either."""

    key: str


@dataclass(frozen=True)
class DefaultText:
    """How the reference prints a default that depends on other settings."""

    text: str


@dataclass(frozen=True)
class Allowed:
    """What a field accepts, if its type does not say enough."""

    text: str


@dataclass(frozen=True)
class Unit:
    """The unit of a number whose name does not carry it."""

    text: str


def union_members(annotation: object) -> tuple[object, ...]:
    """Return the members of `A | B | None`; a plain type is its own only member."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


class BrokenRuleError(ValueError):
    """A rule between settings is broken. `phrase` follows the name of `key`."""

    def __init__(self, key: str, phrase: str) -> None:
        super().__init__(f"{key} {phrase}")
        self.key = key
        self.phrase = phrase


def refuse(key: str, phrase: str) -> NoReturn:
    """Fail validation because of `key`, which is relative to the section that checks."""
    raise BrokenRuleError(key, phrase)


def plain_input(annotation: object, value: object) -> object:
    """Turn empty text into None for an optional value, and refuse a boolean for a number."""
    members = union_members(annotation)
    if value == "" and type(None) in members:
        return None
    if isinstance(value, bool) and bool not in members and (int in members or float in members):
        raise ValueError("a number is needed")
    return value


class Section(BaseModel):
    """A part of the tree: immutable, without unknown keys. Its repr hides secrets."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _plain_input(cls, value: object, info: ValidationInfo) -> object:
        return plain_input(cls.model_fields[str(info.field_name)].annotation, value)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name in type(self).model_fields:
            value = getattr(self, name)
            yield name, value if isinstance(value, BaseModel) else masked(value)


def _usable_path(value: object) -> object:
    if isinstance(value, str) and (not value.strip() or "\0" in value):
        raise ValueError("a path is needed")
    return value


def _expand_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError("the home directory is not known") from error


LocalPath = Annotated[Path, BeforeValidator(_usable_path), AfterValidator(_expand_home)]
Secret = SecretStr | None


@dataclass(frozen=True)
class SettingProblem:
    """One problem. `message` is a sentence with the key, its origin, the given value and what is allowed."""

    key: str
    place: str
    message: str

    def __str__(self) -> str:
        return self.message


class SettingsError(Exception):
    """The settings cannot be used. `problems` holds one entry for each thing to correct."""

    def __init__(self, problems: Iterable[SettingProblem]) -> None:
        self.problems = list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)
