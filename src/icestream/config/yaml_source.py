"""A settings file: safe YAML, small, without duplicate keys, with references to the environment replaced."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from icestream.config.errors import Problem, SettingsError
from icestream.config.variables import ValueProblem, expand

MAX_FILE_BYTES = 1024 * 1024
MAX_VALUES = 10_000
MAX_DEPTH = 32

_NULL = "tag:yaml.org,2002:null"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"

Keys = tuple[str, ...]


@dataclass
class FileContent:
    """Nested plain data, where each key stands, and what was wrong with single values."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Keys, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_yaml(path: Path, environ: Mapping[str, str]) -> FileContent:
    """The file's content. Raises SettingsError if it cannot be read as a whole."""
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
    return SettingsError([Problem("", place, f"{place}: the settings file {phrase}")])


class _Reader:
    """Walks the nodes itself, because a plain load hides duplicate keys and line numbers."""

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
            return str(node.value)  # no setting is a date, and text is what was meant
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
        self._content.problems.append(Problem(key, place, f"{key} ({place}) {phrase}"))

    def _place(self, node: yaml.Node) -> str:
        return f"{self._path}, line {node.start_mark.line + 1}"
