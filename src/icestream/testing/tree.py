"""The names of a simulated disk: what programs see, and what may be on the disk under it.

Files and directories are numbered nodes; a directory maps names to numbers. A name that was created, renamed or removed
is certain once its directory was synced after that. Until then a power cut may undo it, and what cannot be reached from
the root is gone, however well its own bytes were synced. A rename happens as a whole or not at all.
"""

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from icestream.testing.content import Content

ROOT = 0


class NameLoss(StrEnum):
    """Which of the name changes that were not synced a power cut can undo."""

    LAST = "last"
    """In each directory the last ones, as a journal would."""
    ANY = "any"
    """Any of them that no later change of the same name builds on."""


class Entry(NamedTuple):
    """`name` in `directory` now stands for `node`, or for nothing."""

    directory: int
    name: str
    node: int | None


class Change(NamedTuple):
    """One atomic change of names, and the directories that were not synced since."""

    entries: tuple[Entry, ...]
    unsynced: frozenset[int]


class Directory:
    __slots__ = ("durable", "entries")

    def __init__(self, entries: dict[str, int] | None = None) -> None:
        self.entries = entries or {}
        self.durable = dict(self.entries)

    def copy(self) -> "Directory":
        other = Directory(dict(self.entries))
        other.durable = dict(self.durable)
        return other


Node = Content | Directory


class Tree:
    """All nodes of a disk, and the changes of names that are not durable."""

    def __init__(self, nodes: dict[int, Node] | None = None) -> None:
        self.nodes: dict[int, Node] = nodes or {ROOT: Directory()}
        self.pending: list[Change] = []
        self._next = max(self.nodes) + 1

    def copy(self) -> "Tree":
        other = Tree({number: node.copy() for number, node in self.nodes.items()})
        other.pending = list(self.pending)
        return other

    def add(self, node: Node) -> int:
        number, self._next = self._next, self._next + 1
        self.nodes[number] = node
        return number

    def directory(self, number: int) -> Directory:
        node = self.nodes[number]
        assert isinstance(node, Directory)
        return node

    def files(self) -> dict[int, Content]:
        return {number: node for number, node in self.nodes.items() if isinstance(node, Content)}

    def change(self, *entries: Entry) -> None:
        for directory, name, node in entries:
            _assign(self.directory(directory).entries, name, node)
        self.pending.append(Change(entries, frozenset(entry.directory for entry in entries)))

    def sync(self, directory: int) -> None:
        """Make the directory's changes durable; one that spans two directories needs both synced.

        A change that a durable one builds on, because it set the same name before, is durable with it.
        """
        settled: list[Change] = []
        waiting: list[Change] = []
        built_on: set[tuple[int, str]] = set()
        for entries, unsynced in reversed(self.pending):
            change = Change(entries, unsynced - {directory})
            if not change.unsynced or built_on & _names(change):
                built_on |= _names(change)
                settled.append(change)
            else:
                waiting.append(change)
        for change in reversed(settled):
            for owner, name, node in change.entries:
                _assign(self.directory(owner).durable, name, node)
        self.pending = waiting[::-1]

    def random_survivors(self, rng: random.Random, loss: NameLoss) -> list[Change]:
        """The changes that outlive a power cut, in one legal choice."""
        chance = rng.choice((0.0, 0.5, 0.9, 1.0))
        survivors: list[Change] = []
        blocked: set[object] = set()
        for change in self.pending:
            keys = _keys(change, loss)
            if blocked.isdisjoint(keys) and rng.random() < chance:
                survivors.append(change)
            else:
                blocked |= keys
        return survivors

    def all_survivors(self, loss: NameLoss) -> Iterator[list[Change]]:
        def choose(index: int, kept: list[Change], blocked: frozenset[object]) -> Iterator[list[Change]]:
            if index == len(self.pending):
                yield kept
                return
            change = self.pending[index]
            keys = _keys(change, loss)
            if blocked.isdisjoint(keys):
                yield from choose(index + 1, [*kept, change], blocked)
            yield from choose(index + 1, kept, blocked | keys)

        yield from choose(0, [], frozenset())

    def after_cut(self, survivors: list[Change]) -> "Tree":
        """The durable names and these changes. Files are those of this tree: the caller puts what is left of them."""
        durable = {number: dict(node.durable) for number, node in self.nodes.items() if isinstance(node, Directory)}
        for change in survivors:
            for owner, name, target in change.entries:
                _assign(durable[owner], name, target)
        reached: dict[int, Node] = {}
        queue = [ROOT]
        while queue:
            number = queue.pop()
            node = self.nodes[number]
            if isinstance(node, Directory):
                reached[number] = Directory(durable[number])
                queue.extend(durable[number].values())
            else:
                reached[number] = node
        return Tree(reached)


def _assign(entries: dict[str, int], name: str, node: int | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _names(change: Change) -> set[tuple[int, str]]:
    return {(entry.directory, entry.name) for entry in change.entries}


def _keys(change: Change, loss: NameLoss) -> set[object]:
    """If this change is undone, so is every later one that shares a key with it."""
    if loss is NameLoss.LAST:
        return {entry.directory for entry in change.entries}
    return set(_names(change))
