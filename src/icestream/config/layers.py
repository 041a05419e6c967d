"""One layer of settings (file, environment or flags) as a list of single values, with keys checked."""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from icestream.config.errors import Problem
from icestream.config.tree import ENV_DELIMITER, ENV_PREFIX, Branch, Keys, Leaf, file_tree, find, leaves, named_tree
from icestream.config.yaml_source import FileContent

# Variables with our prefix that are not settings: they belong to commands, clients and test runs.
OTHER_VARIABLES = frozenset(
    f"{ENV_PREFIX}{name}" for name in ("BROKER", "CONFIG", "TOKEN", "SOAK", "CACHE", "DEBUG", "CRASH_AT")
)


@dataclass(frozen=True)
class Given:
    """A value, the setting it is for, and the key and place where somebody wrote it."""

    leaf: Leaf
    value: object
    written: Keys
    place: str

    @property
    def key(self) -> str:
        return ".".join(self.written)


@dataclass
class Layer:
    given: dict[Keys, Given] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, new: Given) -> None:
        """Take a value. A setting may be given twice only by two names in one section, and with equal values."""
        old = self.given.setdefault(new.leaf.path, new)
        if old is new or (old.written[0] == new.written[0] and str(old.value) == str(new.value)):
            return
        self.refuse(new.key, new.place, f"is the same setting as {old.key} ({old.place}): keep one of them")

    def refuse(self, key: str, place: str, phrase: str) -> None:
        self.problems.append(Problem(key, place, f"{key} ({place}) {phrase}"))


def file_layer(content: FileContent) -> Layer:
    layer = Layer(problems=list(content.problems))
    _walk(layer, file_tree(), content.values, (), content.places)
    return layer


def _walk(layer: Layer, branch: Branch, values: Mapping[str, Any], above: Keys, places: Mapping[Keys, str]) -> None:
    for name, value in values.items():
        written = (*above, name)
        place, key = places[written], ".".join(written)
        child = branch.children.get(name)
        if child is None:
            layer.refuse(key, place, f"is not a known key{_hint(name, branch, above)}")
        elif isinstance(child, Leaf):
            layer.add(Given(child, value, written, place))
        elif isinstance(value, Mapping):
            _walk(layer, child, value, written, places)
        elif value is not None:
            layer.refuse(key, place, f"must be a section with keys under it: {', '.join(child.children)}")


def environment_layer(environ: Mapping[str, str]) -> Layer:
    layer = Layer()
    for name, text in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or name in OTHER_VARIABLES:
            continue
        written = tuple(name.removeprefix(ENV_PREFIX).lower().split(ENV_DELIMITER))
        place = f"environment variable {name}"
        found = find(named_tree(), written)
        if isinstance(found, Leaf):
            for value in _variable_values(layer, found, text, place):
                layer.add(Given(found, value, written, place))
        else:
            layer.problems.append(
                Problem(name, place, f"{name} is not a known environment variable{_near_variable(name)}")
            )
    return layer


def _variable_values(layer: Layer, leaf: Leaf, text: str, place: str) -> Iterator[object]:
    """The value of a variable; a mapping is given as a JSON object."""
    if not leaf.mapping:
        yield text
        return
    try:
        yield json.loads(text)
    except (ValueError, RecursionError):
        layer.refuse(leaf.key, place, f"takes {leaf.allowed} as a JSON object, and this is not valid JSON")


def flag_layer(overrides: Mapping[str, object]) -> Layer:
    """Dotted keys with values; None is a flag that was not given."""
    layer = Layer()
    for key, value in overrides.items():
        if value is None:
            continue
        written = tuple(key.split("."))
        found = find(named_tree(), written)
        if isinstance(found, Leaf):
            layer.add(Given(found, value, written, "flag"))
        else:
            layer.refuse(key, "flag", f"is not a known key{_flag_hint(written)}")
    return layer


def _flag_hint(written: Keys) -> str:
    """The hint at the first name that leads nowhere; a section itself is not a setting."""
    for depth in range(len(written) - 1, -1, -1):
        branch = find(named_tree(), written[:depth])
        if isinstance(branch, Branch):
            return _hint(written[depth], branch, written[:depth])
    return ""


def _hint(name: str, branch: Branch, above: Keys) -> str:
    """`; did you mean …? Allowed here: …`."""
    near = [".".join((*above, found)) for found in difflib.get_close_matches(name, branch.children, n=1)]
    near += [leaf.key for leaf in leaves() if leaf.path[-1] == name]
    near += difflib.get_close_matches(".".join((*above, name)), [leaf.key for leaf in leaves()], n=1)
    where = f"in {'.'.join(above)}" if above else "here"
    return f"{_did_you_mean(near)}; allowed {where}: {', '.join(branch.children)}"


def _near_variable(name: str) -> str:
    names = [leaf.variable for leaf in leaves()]
    section = ENV_DELIMITER.join(name.split(ENV_DELIMITER)[:-1]) + ENV_DELIMITER
    siblings = [known for known in names if known.startswith(section)]
    near = difflib.get_close_matches(name, names, n=1) or siblings[:1]
    sections = [f"{ENV_PREFIX}{child.upper()}" for child in named_tree().children]
    text = _did_you_mean(near)
    return f"{text}; allowed: {', '.join(siblings)}" if siblings else f"{text}; names begin with: {', '.join(sections)}"


def _did_you_mean(near: list[str]) -> str:
    return f" (did you mean {near[0]}?)" if near else ""
