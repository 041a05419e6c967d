"""Effective settings for people and machines, secrets hidden."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from icestream.config.load import Loaded
from icestream.config.mask import masked
from icestream.config.settings import Settings
from icestream.config.tree import Leaf, leaves


def value_of(settings: Settings, leaf: Leaf) -> object:
    """The leaf's value as plain data, secrets hidden."""
    found: object = settings
    for name in leaf.path:
        assert isinstance(found, BaseModel)
        found = getattr(found, name)
    return masked(found)


def to_tree(loaded: Loaded, *, origins: bool = False) -> dict[str, Any]:
    """Nested plain data; with `origins`, each value becomes `{"value": …, "origin": …}`."""

    def entry(leaf: Leaf) -> object:
        value = value_of(loaded.settings, leaf)
        return {"value": value, "origin": _origin(loaded.origins, leaf)} if origins else value

    return _nest(entry)


def to_yaml(loaded: Loaded, *, origins: bool = False) -> str:
    """YAML, one line a setting; with `origins`, each line ends with a comment that says where its value is from."""
    lines: list[str] = []
    section: tuple[str, ...] = ()
    for leaf in leaves():
        above = leaf.path[:-1]
        for depth, name in enumerate(above):
            if section[: depth + 1] != above[: depth + 1]:
                lines.append(f"{'  ' * depth}{name}:")
        section = above
        # A JSON value is a YAML value too, and never needs a second line.
        text = json.dumps(value_of(loaded.settings, leaf), ensure_ascii=False)
        comment = f"  # {_origin(loaded.origins, leaf)}" if origins else ""
        lines.append(f"{'  ' * len(above)}{leaf.path[-1]}: {text}{comment}")
    return "\n".join(lines) + "\n"


def _origin(origins: Mapping[str, str], leaf: Leaf) -> str:
    return origins.get(leaf.key, "default")


def _nest(entry: Callable[[Leaf], object]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for leaf in leaves():
        level = root
        for name in leaf.path[:-1]:
            level = level.setdefault(name, {})
        level[leaf.path[-1]] = entry(leaf)
    return root
