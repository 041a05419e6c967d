"""The sources of settings: YAML file, environment, flags. Each becomes a layer of single values with checked keys."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from icestream.config.fields import SettingProblem, SettingsError
from icestream.config.tree import ENV_DELIMITER, ENV_PREFIX, Branch, Keys, Leaf, file_tree, find, leaves, named_tree

# References to environment variables in a file's values

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_BODY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


class ValueProblem(Exception):  # noqa: N818 - it becomes a SettingProblem
    """One value of a file cannot be used. The text is a phrase that follows the key's name."""


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${NAME}` by the variable, `${NAME:-text}` by `text` if it is unset or empty, and `$${` by `${`."""

    def replacement(match: re.Match[str]) -> str:
        if match.group() == "$${":
            return "${"
        body = _BODY.fullmatch(match.group(1) or "")
        if body is None:
            raise ValueProblem(
                "has a ${ that is not a reference: write ${NAME}, ${NAME:-default}, or $${ for a plain ${"
            )
        name, default = body.groups()
        value = environ.get(name)
        if default is not None:
            return value or str(default)
        if value is None:
            raise ValueProblem(
                f"refers to the environment variable {name}, which is not set: set it, or write ${{{name}:-default}}"
            )
        return value

    return _REFERENCE.sub(replacement, text)


# A settings file: safe YAML, bounded in size, without duplicate keys

MAX_FILE_BYTES = 1024 * 1024
MAX_VALUES = 10_000
MAX_DEPTH = 32

_NULL = "tag:yaml.org,2002:null"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


@dataclass
class FileContent:
    """Nested plain data, the file and line of each key, and the problems of single values."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Keys, str] = field(default_factory=dict)
    problems: list[SettingProblem] = field(default_factory=list)


def read_yaml(path: Path, environ: Mapping[str, str]) -> FileContent:
    """Read the file. Raise `SettingsError` if it cannot be read as a whole."""
    text = _read(path)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return _Reader(path, environ).read(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        raise _unreadable(place, f"is not valid YAML: {error.problem or error.context}") from error
    except yaml.reader.ReaderError as error:
        raise _unreadable(
            str(path), f"has a character at position {error.position} that YAML does not allow"
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise _unreadable(str(path), "is nested too deep to be a settings file") from error


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable(str(path), f"cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise _unreadable(str(path), f"is larger than {MAX_FILE_BYTES} bytes, too large for a settings file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(str(path), f"is not UTF-8 text (at byte {error.start})") from error


def _unreadable(place: str, phrase: str) -> SettingsError:
    return SettingsError([SettingProblem("", place, f"{place}: the settings file {phrase}")])


class _Reader:
    """Reads YAML nodes, because a plain load hides duplicate keys and line numbers."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self._path = path
        self._environ = environ
        self._constructor = yaml.constructor.SafeConstructor()
        self._content = FileContent()
        self._visited = 0

    def read(self, root: yaml.Node | None) -> FileContent:
        if root is None or root.tag == _NULL:
            return self._content
        if not isinstance(root, yaml.MappingNode):
            raise _unreadable(str(self._path), "must be a mapping of sections, like `wal:` with keys under it")
        self._content.values = self._mapping(root, ())
        return self._content

    def _value(self, node: yaml.Node, keys: Keys) -> object:
        self._visited += 1
        if self._visited > MAX_VALUES or len(keys) > MAX_DEPTH:
            raise _unreadable(self._place(node), f"has more than {MAX_VALUES} values or {MAX_DEPTH} levels")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, keys)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*keys, str(index))) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> object:
        if node.tag == _TIMESTAMP:
            return str(node.value)  # no setting is a date
        try:
            value: object = self._constructor.construct_object(node)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueProblem("has a value that YAML cannot read; put it in quotes if it is text") from error
        return expand(value, self._environ) if isinstance(value, str) else value

    def _mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, name_node, value_node in self._names(node, keys):
            path = (*keys, name)
            self._content.places[path] = self._place(name_node)
            try:
                result[name] = self._value(value_node, path)
            except ValueProblem as problem:
                self._problem(path, name_node, str(problem))
        return result

    def _names(self, node: yaml.MappingNode, keys: Keys) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        seen: dict[str, yaml.Node] = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, yaml.ScalarNode):
                raise _unreadable(self._place(name_node), "has a key that is not text")
            name = str(name_node.value)
            if name in seen:
                line = seen[name].start_mark.line + 1
                self._problem((*keys, name), name_node, f"is given twice, first on line {line}: keep one of them")
                continue
            seen[name] = name_node
            yield name, name_node, value_node

    def _problem(self, path: Keys, node: yaml.Node, phrase: str) -> None:
        key, place = ".".join(path), self._place(node)
        self._content.problems.append(SettingProblem(key, place, f"{key} ({place}) {phrase}"))

    def _place(self, node: yaml.Node) -> str:
        return f"{self._path}, line {node.start_mark.line + 1}"


# Variables with the prefix that are not settings: commands, clients and test runs use them.
OTHER_VARIABLES = frozenset(f"{ENV_PREFIX}{name}" for name in ("BROKER", "CONFIG", "TOKEN", "SOAK", "CACHE", "DEBUG"))


@dataclass(frozen=True)
class GivenValue:
    """A value, its setting, and the key and place where it was written."""

    leaf: Leaf
    value: object
    written: Keys
    place: str

    @property
    def key(self) -> str:
        return ".".join(self.written)


@dataclass
class Layer:
    given: dict[Keys, GivenValue] = field(default_factory=dict)
    problems: list[SettingProblem] = field(default_factory=list)

    def add(self, new: GivenValue) -> None:
        """Add a value. A setting may be given twice only by two names in one section, with equal values."""
        old = self.given.setdefault(new.leaf.path, new)
        if old is new or (old.written[0] == new.written[0] and str(old.value) == str(new.value)):
            return
        self.refuse(new.key, new.place, f"is the same setting as {old.key} ({old.place}): keep one of them")

    def refuse(self, key: str, place: str, phrase: str) -> None:
        self.problems.append(SettingProblem(key, place, f"{key} ({place}) {phrase}"))


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
            layer.add(GivenValue(child, value, written, place))
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
                layer.add(GivenValue(found, value, written, place))
        else:
            layer.problems.append(
                SettingProblem(name, place, f"{name} is not a known environment variable{_near_variable(name)}")
            )
    return layer


def _variable_values(layer: Layer, leaf: Leaf, text: str, place: str) -> Iterator[object]:
    """Yield the value of a variable. A mapping is given as a JSON object."""
    if not leaf.mapping:
        yield text
        return
    try:
        yield json.loads(text)
    except (ValueError, RecursionError):
        layer.refuse(leaf.key, place, f"takes {leaf.allowed} as a JSON object; the value is not valid JSON")


def flag_layer(overrides: Mapping[str, object]) -> Layer:
    """Return the layer of flags, by dotted key. None is a flag that was not given."""
    layer = Layer()
    for key, value in overrides.items():
        if value is None:
            continue
        written = tuple(key.split("."))
        found = find(named_tree(), written)
        if isinstance(found, Leaf):
            layer.add(GivenValue(found, value, written, "flag"))
        else:
            layer.refuse(key, "flag", f"is not a known key{_flag_hint(written)}")
    return layer


def _flag_hint(written: Keys) -> str:
    """Return the hint for the first unknown name of a key. A section itself is not a setting."""
    for depth in range(len(written) - 1, -1, -1):
        branch = find(named_tree(), written[:depth])
        if isinstance(branch, Branch):
            return _hint(written[depth], branch, written[:depth])
    return ""


def _hint(name: str, branch: Branch, above: Keys) -> str:
    """Return a suggestion and the allowed names."""
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
