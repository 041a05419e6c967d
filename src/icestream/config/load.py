"""Loading settings: defaults, then the file, then the environment, then flags; each overrides the ones before."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from icestream.config.fields import MASK, BrokenRuleError, SettingProblem, SettingsError, masked
from icestream.config.settings import Settings
from icestream.config.sources import GivenValue, Layer, environment_layer, file_layer, flag_layer, read_yaml
from icestream.config.tree import Keys, Leaf, leaves

_MAX_SHOWN = 120


@dataclass(frozen=True)
class Loaded:
    """Settings, and the origin of each value that is not a default."""

    settings: Settings
    origins: Mapping[str, str]


def load_settings(
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the effective settings.

    `path` is a YAML file or None. `overrides` are flags by dotted key (`{"server.flight_port": 0}`); None is a flag
    that was not given. `environ` is the process's environment by default. Raise `SettingsError` with every problem.
    """
    return load_with_origins(path, overrides, environ).settings


def load_with_origins(
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Return the effective settings and the origin of each value; see `load_settings`."""
    variables = os.environ if environ is None else environ
    layers = [
        file_layer(read_yaml(path, variables)) if path else Layer(),
        environment_layer(variables),
        flag_layer(overrides or {}),
    ]
    given: dict[Keys, GivenValue] = {}
    for layer in layers:
        given |= layer.given
    problems = [problem for layer in layers for problem in layer.problems]
    try:
        settings = Settings(**_nested(given))
    except ValidationError as error:
        raise SettingsError([*problems, *_problems(error, given, fields_only=bool(problems))]) from None
    if problems:
        raise SettingsError(problems)
    return Loaded(settings, {value.leaf.key: value.place for value in given.values()})


def _nested(given: Mapping[Keys, GivenValue]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for path, value in given.items():
        level = root
        for name in path[:-1]:
            level = level.setdefault(name, {})
        level[path[-1]] = value.value
    return root


def _problems(error: ValidationError, given: Mapping[Keys, GivenValue], *, fields_only: bool) -> list[SettingProblem]:
    """Return one problem per setting. With `fields_only`, leave out rules between settings: some could not be read."""
    by_path = {leaf.path: leaf for leaf in leaves()}
    found: dict[Keys, SettingProblem] = {}
    for detail in error.errors(include_url=False, include_input=False):
        location = tuple(str(part) for part in detail["loc"])
        refusal = detail.get("ctx", {}).get("error")
        if isinstance(refusal, BrokenRuleError):
            path = (*location, *refusal.key.split("."))
            if not fields_only:
                found.setdefault(path, _rule_problem(by_path[path], given.get(path), refusal.phrase))
        else:
            leaf = next(by_path[location[:end]] for end in range(len(location), 0, -1) if location[:end] in by_path)
            found[leaf.path] = _value_problem(leaf, given[leaf.path])
    return list(found.values())


def _rule_problem(leaf: Leaf, given: GivenValue | None, phrase: str) -> SettingProblem:
    if given is None:
        return SettingProblem(leaf.key, "default", f"{leaf.key} {phrase}")
    return SettingProblem(
        given.key, given.place, f"{given.key} ({given.place}) is {_shown(leaf, given.value)} and {phrase}"
    )


def _value_problem(leaf: Leaf, given: GivenValue) -> SettingProblem:
    shown = _shown(leaf, given.value)
    return SettingProblem(given.key, given.place, f"{given.key} ({given.place}) is {shown}; it takes {leaf.allowed}")


def _shown(leaf: Leaf, value: object) -> str:
    if value is None:
        return "null"
    if leaf.secret or (leaf.mapping and not isinstance(value, Mapping)):
        return MASK
    text = str(value).lower() if isinstance(value, bool) else repr(masked(value))
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
