"""A disk in memory that can lose its power.

`SimulatedDisk` replaces `LocalFiles`. Programs see the same files. It also tracks what is durable: bytes after
`datasync`, names after `sync_directory`, nothing else. From that it makes the states that a power cut may leave:
`power_cut` returns a random one, `all_power_cut_states` every one.

To cut the power at every point of a program, take a `snapshot` in `on_operation`, which runs before each change. A
snapshot costs a few microseconds a file; bytes are copied only when they are written to.
"""

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from icestream.model.frames import Bytes
from icestream.testing.faults import DiskOperation, Kind

# The bytes of a file: what programs see, and what may be on the disk.
#
# The disk writes a sector at a time, in any order, at any moment. So each sector written since the file's last datasync
# may hold any of its contents since then, and the file may have any of its sizes since then. Three rules limit this:
#
# * bytes within the size that nothing was written to read as zeros;
# * a truncation that reached the disk removed the bytes behind it, whatever a sector held before;
# * after a *failed* datasync the sectors it should have written are clean in memory and unknown on the disk. Programs
#   still see the new bytes, and a later datasync does not write them; only writing them again does.


SECTOR_BYTES = 512
PAGE_BYTES = 4096


class Version(NamedTuple):
    """The content of a sector since `time`."""

    time: int
    data: bytes


class Size(NamedTuple):
    """The size of a file since `time`, or the size it was cut to at `time`."""

    time: int
    size: int


@dataclass(slots=True)
class Content:
    sector_bytes: int = SECTOR_BYTES
    size: int = 0
    data: bytearray = field(default_factory=bytearray)
    """What programs see; zeros from here to the size."""
    shared: bool = False
    """Another content has the same bytearray."""
    time: int = 0
    """The number of changes so far."""
    versions: dict[int, tuple[Version, ...]] = field(default_factory=dict)
    """What each sector that is not durable may hold, oldest first."""
    doomed: set[int] = field(default_factory=set)
    """The sectors that are not durable and that no datasync will write."""
    sizes: tuple[Size, ...] = (Size(0, 0),)
    size_doomed: bool = False
    truncations: tuple[Size, ...] = ()

    @property
    def is_durable(self) -> bool:
        return not self.versions and len(self.sizes) == 1

    def copy(self) -> "Content":
        """Return an independent copy; the bytes are copied when one of the two is written to."""
        self.shared = True
        return Content(  # not `replace`, which takes five times as long: a power cut copies every file
            self.sector_bytes,
            self.size,
            self.data,
            self.shared,
            self.time,
            dict(self.versions),
            set(self.doomed),
            self.sizes,
            self.size_doomed,
            self.truncations,
        )

    def read(self, length: int, position: int) -> bytes:
        end = min(position + length, self.size)
        if end <= position:
            return b""
        found = bytes(self.data[position:end])
        return found if len(found) == end - position else found + bytes(end - position - len(found))

    def write(self, data: bytes, position: int) -> None:
        if not data:
            return
        end = position + len(data)
        touched = self._sectors(position, end)
        self._begin(touched)
        self._own()
        _put(self.data, data, position)
        if end > self.size:
            self._grow_by_write(end)
        if end >= self.size:
            self.size_doomed = False
        self._record(touched)

    def allocate(self, end: int) -> None:
        self.time += 1
        self.size_doomed = False
        if end > self.size:
            self._set_size(end)

    def truncate(self, length: int) -> None:
        """Zero the cut sector at once. Removed sectors keep their content until the new size is durable."""
        self.size_doomed = False
        self._begin(self._sectors(min(length, len(self.data)), len(self.data)))
        if length < self.size:
            self.truncations = (*self.truncations, Size(self.time, length))
        if length < len(self.data):
            self._own()
            del self.data[length:]
            if length % self.sector_bytes:
                self._record(self._sectors(length, length + 1))
        if length != self.size:
            self._set_size(length)

    def datasync(self) -> None:
        if self.size_doomed:
            self.versions = {sector: self.versions[sector] for sector in self.doomed}
            return
        self.versions = {
            sector: tuple(
                Version(version.time, self.after_truncations(sector, version, self.time))
                for version in self.versions[sector]
            )
            for sector in self.doomed
        }
        self.truncations = ()
        self.sizes = (Size(self.time, self.size),)

    def sync_range(self, start: int, end: int) -> None:
        """Make the bytes of a durable write durable, and no others."""
        for sector in self._sectors(start, end):
            if sector not in self.doomed:
                self.versions.pop(sector, None)
        if not self.size_doomed:
            self.sizes = tuple(size for size in self.sizes if size.size >= end) or self.sizes[-1:]

    def fail_datasync(self) -> None:
        """Fail: unsynced bytes may or may not be on the disk, and no later datasync writes them."""
        self.doomed = set(self.versions)
        self.size_doomed = len(self.sizes) > 1

    def drop_cache(self, rng: random.Random) -> None:
        """Forget the bytes that a failed datasync left clean in memory: reads show what the disk holds."""
        if not self.doomed:
            return
        self._own()
        for sector in sorted(self.doomed):
            version = rng.choice(self.versions.pop(sector))
            _put(self.data, self.after_truncations(sector, version, self.time), sector * self.sector_bytes)
        del self.data[self.size :]
        self.doomed = set()

    def after_truncations(self, sector: int, version: Version, moment: int) -> bytes:
        """Return the sector's bytes if it holds `version` and the size is that of `moment`."""
        data = version.data
        for time, length in self.truncations:
            if version.time < time <= moment:
                kept = max(0, length - sector * self.sector_bytes)
                data = data[:kept].ljust(self.sector_bytes, b"\0")
        return data

    def after_cut(self, size: Size, picks: Mapping[int, Version]) -> "Content":
        """Return the file as it is found with this size and these versions of its unsynced sectors."""
        data = bytearray(self.data)
        for sector, version in picks.items():
            _put(data, self.after_truncations(sector, version, size.time), sector * self.sector_bytes)
        del data[size.size :]
        return Content(self.sector_bytes, size.size, data, sizes=(Size(0, size.size),))

    def _sectors(self, start: int, end: int) -> range:
        return range(start // self.sector_bytes, -(-end // self.sector_bytes))

    def _sector(self, sector: int) -> bytes:
        start = sector * self.sector_bytes
        return bytes(self.data[start : start + self.sector_bytes]).ljust(self.sector_bytes, b"\0")

    def _own(self) -> None:
        if self.shared:
            self.data = bytearray(self.data)
            self.shared = False

    def _begin(self, sectors: range) -> None:
        """Record the content of sectors before they change."""
        for sector in sectors:
            if sector not in self.versions:
                self.versions[sector] = (Version(self.time, self._sector(sector)),)
        self.time += 1

    def _record(self, sectors: range) -> None:
        """Record the content of sectors after a change; the next datasync writes it."""
        for sector in sectors:
            self.versions[sector] = (*self.versions[sector], Version(self.time, self._sector(sector)))
        self.doomed.difference_update(sectors)

    def _set_size(self, size: int) -> None:
        self.size = size
        self.sizes = (*self.sizes, Size(self.time, size))

    def _grow_by_write(self, end: int) -> None:
        """Grow a page at a time, as a write reaches the disk."""
        for size in range((self.size // PAGE_BYTES + 1) * PAGE_BYTES, end, PAGE_BYTES):
            self._set_size(size)
        self._set_size(end)


def _put(data: bytearray, part: bytes, position: int) -> None:
    if position > len(data):
        data.extend(bytes(position - len(data)))
    data[position : position + len(part)] = part


# The names of a disk: what programs see, and what may be on the disk.
#
# Files and directories are numbered nodes; a directory maps names to numbers. A change of a name is durable after the
# next sync of its directory. Until then a power cut may undo it. What cannot be reached from the root is gone, even if
# its own bytes were synced. A rename happens as a whole or not at all.


ROOT = 0


class NameLoss(StrEnum):
    """Which unsynced changes of names a power cut can undo."""

    LAST = "last"
    """The last ones in each directory, as with a journal."""
    ANY = "any"
    """Any of them that no later change of the same name builds on."""


class NameEntry(NamedTuple):
    """`name` in `directory` now refers to `node`, or to nothing."""

    directory: int
    name: str
    node: int | None


class Change(NamedTuple):
    """An atomic change of names, and the directories that were not synced since."""

    entries: tuple[NameEntry, ...]
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
    """All nodes of a disk, and the unsynced changes of names."""

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

    def change(self, *entries: NameEntry) -> None:
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
        """Return a possible choice of the changes that survive a power cut."""
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
        """Return the durable names with these changes. The caller replaces the files' contents."""
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
    """Return the keys of a change. If it is undone, so is every later change that shares a key with it."""
    if loss is NameLoss.LAST:
        return {entry.directory for entry in change.entries}
    return set(_names(change))


# The states that a power cut may leave: a random one, or all of them.
#
# Random states prefer those that break programs: nothing arrived, all arrived, a prefix in the order of the writes, one
# sector missing, one sector alone, and any mixture.


class Tearing(StrEnum):
    """The unit that a power cut writes as a whole or not at all."""

    SECTOR = "sector"
    BYTE = "byte"
    """No real disk does this. It makes tests reach every position within a frame."""


def random_state(tree: Tree, rng: random.Random, tearing: Tearing, loss: NameLoss) -> Tree:
    found = tree.after_cut(tree.random_survivors(rng, loss))
    for number, file in found.files().items():
        found.nodes[number] = file.copy() if file.is_durable else _random_content(file, rng, tearing)
    return found


def all_states(tree: Tree, limit: int, tearing: Tearing, loss: NameLoss) -> Iterator[Tree]:
    """Return every combination of the files' states; a ValueError if there are more than `limit`."""
    trees = [tree.after_cut(survivors) for survivors in tree.all_survivors(loss)]
    count = sum(prod(_count(file, tearing) for file in found.files().values()) for found in trees)
    if count > limit:
        raise ValueError(f"a power cut now may leave {count} states, more than {limit}")
    for found in trees:
        files = found.files()
        for contents in product(*(_all_contents(file, tearing) for file in files.values())):
            yield Tree({**found.nodes, **dict(zip(files, contents, strict=True))}).copy()


def _random_content(file: Content, rng: random.Random, tearing: Tearing) -> Content:
    oldest = {sector: versions[0] for sector, versions in file.versions.items()}
    newest = {sector: versions[-1] for sector, versions in file.versions.items()}
    size = file.sizes[-1]
    match rng.randrange(6):
        case 0:  # nothing arrived
            size, picks = file.sizes[0], oldest
        case 1:  # all of it arrived
            picks = newest
        case 2:  # it arrived in the order of the writes, up to a moment, and the write of that moment is torn
            moment = rng.randint(file.sizes[0].time, file.time)
            size = _newest(file.sizes, moment)
            picks = {sector: _newest(found, moment - rng.randrange(2)) for sector, found in file.versions.items()}
        case 3:  # all but one sector arrived
            picks = newest | _one_at_random(file, rng, tearing)
            size = _random_size(file, rng, tearing)
        case 4:  # one sector alone arrived
            picks = oldest | _one_at_random(file, rng, tearing)
        case _:
            picks = {sector: _random_version(file, sector, rng, tearing) for sector in file.versions}
            size = _random_size(file, rng, tearing)
    return file.after_cut(size, picks)


def _one_at_random(file: Content, rng: random.Random, tearing: Tearing) -> dict[int, Version]:
    if not file.versions:
        return {}
    sector = rng.choice(list(file.versions))
    return {sector: _random_version(file, sector, rng, tearing)}


def _random_version(file: Content, sector: int, rng: random.Random, tearing: Tearing) -> Version:
    versions = file.versions[sector]
    index = rng.randrange(len(versions))
    if tearing is Tearing.SECTOR or index == 0:
        return versions[index]
    return _torn(versions[index - 1], versions[index], rng.randint(0, file.sector_bytes))


def _random_size(file: Content, rng: random.Random, tearing: Tearing) -> Size:
    if rng.randrange(2):
        return file.sizes[-1]
    index = rng.randrange(len(file.sizes))
    chosen = file.sizes[index]
    if tearing is Tearing.BYTE and index and chosen.size > file.sizes[index - 1].size:
        return Size(chosen.time, rng.randint(file.sizes[index - 1].size, chosen.size))
    return chosen


def _count(file: Content, tearing: Tearing) -> int:
    return len(set(file.sizes)) * prod(len(_possible(file, sector, tearing)) for sector in file.versions)


def _all_contents(file: Content, tearing: Tearing) -> Iterator[Content]:
    choices = [_possible(file, sector, tearing) for sector in file.versions]
    for size in sorted(set(file.sizes)):
        for picked in product(*choices):
            yield file.after_cut(size, dict(zip(file.versions, picked, strict=True)))


def _possible(file: Content, sector: int, tearing: Tearing) -> list[Version]:
    """Return everything that the sector may hold, each once."""
    found = list(file.versions[sector])
    if tearing is Tearing.BYTE:
        for old, new in pairwise(file.versions[sector]):
            found += [_torn(old, new, cut) for cut in range(1, file.sector_bytes)]
    if file.truncations:  # these tell apart versions of the same bytes
        return list(dict.fromkeys(found))
    return list({version.data: version for version in found}.values())


_Timed = TypeVar("_Timed", Version, Size)


def _newest(found: tuple[_Timed, ...], moment: int) -> _Timed:
    """Return the last one that is not younger than `moment`, or the oldest if all are."""
    return next((one for one in reversed(found) if one.time <= moment), found[0])


def _torn(old: Version, new: Version, cut: int) -> Version:
    return Version(new.time, new.data[:cut] + old.data[cut:])


MAX_BUFFERS = 1024
"""Linux takes no more buffers than this in one write."""


class SimulatedDisk:
    """Files and directories below `/`, which is there from the start. All methods may be called from any thread."""

    def __init__(self, sector_bytes: int = SECTOR_BYTES) -> None:
        self.on_operation: Callable[[DiskOperation], None] | None = None
        """Called before each change, in the changing thread and without a lock: it may snapshot, wait or raise."""
        self._sector_bytes = sector_bytes
        self._lock = threading.RLock()
        self._tree = Tree()

    def snapshot(self) -> "SimulatedDisk":
        """Return an independent copy of the disk, with everything that is not durable yet."""
        with self._lock:
            return self._with(self._tree.copy())

    def power_cut(
        self, rng: random.Random, *, tearing: Tearing = Tearing.SECTOR, loss: NameLoss = NameLoss.ANY
    ) -> "SimulatedDisk":
        """Return the disk as it may be found after a power cut now."""
        with self._lock:
            return self._with(random_state(self._tree, rng, tearing, loss))

    def all_power_cut_states(
        self, limit: int = 100_000, *, tearing: Tearing = Tearing.SECTOR, loss: NameLoss = NameLoss.ANY
    ) -> Iterator["SimulatedDisk"]:
        """Return every state that a power cut now may leave; a ValueError if there are more than `limit`."""
        with self._lock:
            frozen = self._tree.copy()
        return map(self._with, all_states(frozen, limit, tearing, loss))

    def drop_caches(self, rng: random.Random) -> None:
        """Forget what failed datasyncs left in memory: reads show what the disk holds."""
        with self._lock:
            for file in self._tree.files().values():
                file.drop_cache(rng)

    def count_unsynced(self) -> int:
        """Return how many sectors and changes of names are not durable."""
        with self._lock:
            return len(self._tree.pending) + sum(len(file.versions) for file in self._tree.files().values())

    def unsynced(self) -> list[str]:
        """Describe what is not durable."""
        with self._lock:
            names = [
                f"{owner}:{name} -> {node}" for change in self._tree.pending for owner, name, node in change.entries
            ]
            files = [
                f"node {number}: {len(file.versions)} sectors of {file.size} bytes"
                for number, file in self._tree.files().items()
                if not file.is_durable
            ]
            return names + files

    def open(self, path: Path, *, create: bool = False) -> "SimulatedFile":
        if create:
            self._announce(DiskOperation(Kind.CREATE, path))
            with self._lock:
                parent = self._parent(path)
                if path.name in self._tree.directory(parent).entries:
                    _fail(errno.EEXIST, path)
                self._tree.change(NameEntry(parent, path.name, self._tree.add(Content(self._sector_bytes))))
        elif not self.exists(path):
            _fail(errno.ENOENT, path)
        return SimulatedFile(path, self._lock, self._announce, self._content)

    def read_bytes(self, path: Path) -> bytes:
        with self._lock:
            content = self._content(path)
            return content.read(content.size, 0)

    def exists(self, path: Path) -> bool:
        with self._lock:
            try:
                self._find(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def size(self, path: Path) -> int:
        with self._lock:
            return self._content(path).size

    def names(self, directory: Path) -> list[str]:
        with self._lock:
            try:
                return sorted(self._tree.directory(self._directory(directory)).entries)
            except FileNotFoundError:
                return []

    def make_directory(self, path: Path) -> None:
        self._announce(DiskOperation(Kind.MAKE_DIRECTORY, path))
        with self._lock:
            parent = self._parent(path)
            found = self._tree.directory(parent).entries.get(path.name)
            if found is None:
                self._tree.change(NameEntry(parent, path.name, self._tree.add(Directory())))
            elif not isinstance(self._tree.nodes[found], Directory):
                _fail(errno.EEXIST, path)

    def replace(self, source: Path, target: Path) -> None:
        self._announce(DiskOperation(Kind.REPLACE, source, target=target))
        with self._lock:
            source_parent, target_parent = self._parent(source), self._parent(target)
            moved = self._find(source)
            there = self._tree.directory(target_parent).entries.get(target.name)
            if there == moved:
                return
            if source in target.parents:
                _fail(errno.EINVAL, target)
            if there is not None:
                self._check_replaceable(self._tree.nodes[moved], self._tree.nodes[there], target)
            self._tree.change(NameEntry(source_parent, source.name, None), NameEntry(target_parent, target.name, moved))

    def remove(self, path: Path) -> None:
        self._announce(DiskOperation(Kind.REMOVE, path))
        with self._lock:
            self._content(path)
            self._tree.change(NameEntry(self._parent(path), path.name, None))

    def remove_tree(self, path: Path) -> None:
        """Remove in many steps, each announced to `on_operation`."""
        self._announce(DiskOperation(Kind.REMOVE_TREE, path))
        with self._lock:
            entries = dict(self._tree.directory(self._directory(path)).entries)
        for name, number in sorted(entries.items()):
            if isinstance(self._tree.nodes[number], Directory):
                self.remove_tree(path / name)
            else:
                self.remove(path / name)
        self._announce(DiskOperation(Kind.REMOVE, path))
        with self._lock:
            if self._tree.directory(self._directory(path)).entries:
                _fail(errno.ENOTEMPTY, path)
            self._tree.change(NameEntry(self._parent(path), path.name, None))

    def sync_directory(self, path: Path) -> None:
        self._announce(DiskOperation(Kind.SYNC_DIRECTORY, path))
        with self._lock:
            self._tree.sync(self._directory(path))

    def _with(self, tree: Tree) -> "SimulatedDisk":
        other = SimulatedDisk(self._sector_bytes)
        other._tree = tree
        return other

    def _announce(self, operation: DiskOperation) -> None:
        if self.on_operation is not None:
            self.on_operation(operation)

    def _find(self, path: Path) -> int:
        number = ROOT
        for name in path.parts[1:] if path.is_absolute() else path.parts:
            node = self._tree.nodes[number]
            if not isinstance(node, Directory):
                _fail(errno.ENOTDIR, path)
            if name not in node.entries:
                _fail(errno.ENOENT, path)
            number = node.entries[name]
        return number

    def _directory(self, path: Path) -> int:
        number = self._find(path)
        if not isinstance(self._tree.nodes[number], Directory):
            _fail(errno.ENOTDIR, path)
        return number

    def _parent(self, path: Path) -> int:
        return self._directory(path.parent)

    def _content(self, path: Path) -> Content:
        node = self._tree.nodes[self._find(path)]
        if isinstance(node, Directory):
            _fail(errno.EISDIR, path)
        return node

    def _check_replaceable(self, moved: Node, there: Node, target: Path) -> None:
        if isinstance(there, Directory):
            if not isinstance(moved, Directory):
                _fail(errno.EISDIR, target)
            if there.entries:
                _fail(errno.ENOTEMPTY, target)
        elif isinstance(moved, Directory):
            _fail(errno.ENOTDIR, target)


class SimulatedFile:
    """An open file. Like `LocalFile` it looks up its path at the first use, and again after `close`."""

    def __init__(
        self,
        path: Path,
        lock: threading.RLock,
        announce: Callable[[DiskOperation], None],
        find: Callable[[Path], Content],
    ) -> None:
        self.path = path
        self._lock = lock
        self._announce = announce
        self._find = find
        self._opened: Content | None = None

    def write(self, buffers: Sequence[Bytes], position: int, *, durable: bool = False) -> int:
        data = b"".join(buffers)
        self._announce(DiskOperation(Kind.WRITE, self.path, position, len(data)))
        with self._lock:
            content = self._content()
            if position < 0 or len(buffers) > MAX_BUFFERS:
                _fail(errno.EINVAL, self.path)
            content.write(data, position)
        if durable:
            self._announce(DiskOperation(Kind.DATASYNC, self.path))
            with self._lock:
                content.sync_range(position, position + len(data))
        return len(data)

    def read(self, length: int, position: int) -> bytes:
        with self._lock:
            content = self._content()
            if position < 0:
                _fail(errno.EINVAL, self.path)
            return content.read(length, position)

    def datasync(self) -> None:
        self._announce(DiskOperation(Kind.DATASYNC, self.path))
        with self._lock:
            self._content().datasync()

    def fail_datasync(self) -> None:
        """Do to the disk what a failed datasync does. The caller raises the error."""
        self._announce(DiskOperation(Kind.DATASYNC, self.path))
        with self._lock:
            self._content().fail_datasync()

    def allocate(self, end: int) -> None:
        self._announce(DiskOperation(Kind.ALLOCATE, self.path, length=end))
        with self._lock:
            content = self._content()
            if end <= 0:
                _fail(errno.EINVAL, self.path)
            content.allocate(end)

    def truncate(self, length: int) -> None:
        self._announce(DiskOperation(Kind.TRUNCATE, self.path, length=length))
        with self._lock:
            content = self._content()
            if length < 0:
                _fail(errno.EINVAL, self.path)
            content.truncate(length)

    def size(self) -> int:
        with self._lock:
            return self._content().size

    def close(self) -> None:
        self._opened = None

    def _content(self) -> Content:
        if self._opened is None:
            self._opened = self._find(self.path)
        return self._opened


def _fail(code: int, path: Path) -> NoReturn:
    raise OSError(code, os.strerror(code), str(path))
