"""A disk in memory that can lose its power.

`SimulatedDisk` stands in for `LocalFiles`. It shows the same to programs, and knows beside it what a real disk would
have promised so far: bytes by `datasync`, names by `sync_directory`, nothing else. From that it makes the states that
a power cut at this moment may leave: `power_cut` one at random, `all_power_cut_states` every one of them.

To cut the power at every point of a program, set `on_operation`, which is called before each change, and keep a
`snapshot` there; a snapshot costs a few microseconds a file, and bytes are copied only when written to.
"""

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from icestream.model.frame_bytes import Bytes
from icestream.testing.content import SECTOR_BYTES, Content
from icestream.testing.operations import Kind, Operation
from icestream.testing.power import Tearing, all_states, random_state
from icestream.testing.tree import ROOT, Directory, Entry, NameLoss, Node, Tree

MAX_BUFFERS = 1024
"""Linux takes no more buffers than this in one write."""


class SimulatedDisk:
    """Files and directories below `/`, which is there from the start. All methods may be called from any thread."""

    def __init__(self, sector_bytes: int = SECTOR_BYTES) -> None:
        self.on_operation: Callable[[Operation], None] | None = None
        """Called before each change, in the changing thread and without a lock: it may snapshot, wait or raise."""
        self._sector_bytes = sector_bytes
        self._lock = threading.RLock()
        self._tree = Tree()

    def snapshot(self) -> "SimulatedDisk":
        """An independent copy of the running machine's disk, with all that is not durable yet."""
        with self._lock:
            return self._with(self._tree.copy())

    def power_cut(
        self, rng: random.Random, *, tearing: Tearing = Tearing.SECTOR, loss: NameLoss = NameLoss.ANY
    ) -> "SimulatedDisk":
        """The disk as it may be found after a power cut now."""
        with self._lock:
            return self._with(random_state(self._tree, rng, tearing, loss))

    def all_power_cut_states(
        self, limit: int = 100_000, *, tearing: Tearing = Tearing.SECTOR, loss: NameLoss = NameLoss.ANY
    ) -> Iterator["SimulatedDisk"]:
        """Every state that a power cut now may leave; a ValueError if these are more than `limit`."""
        with self._lock:
            frozen = self._tree.copy()
        return map(self._with, all_states(frozen, limit, tearing, loss))

    def drop_caches(self, rng: random.Random) -> None:
        """Let memory forget what failed datasyncs left in it, so that reads show what the disk really holds."""
        with self._lock:
            for file in self._tree.files().values():
                file.drop_cache(rng)

    def count_unsynced(self) -> int:
        """How many sectors and changes of names are not durable: the more, the more a power cut can do."""
        with self._lock:
            return len(self._tree.pending) + sum(len(file.versions) for file in self._tree.files().values())

    def unsynced(self) -> list[str]:
        """What is not durable, in words."""
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
            self._announce(Operation(Kind.CREATE, path))
            with self._lock:
                parent = self._parent(path)
                if path.name in self._tree.directory(parent).entries:
                    _fail(errno.EEXIST, path)
                self._tree.change(Entry(parent, path.name, self._tree.add(Content(self._sector_bytes))))
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
        self._announce(Operation(Kind.MAKE_DIRECTORY, path))
        with self._lock:
            parent = self._parent(path)
            found = self._tree.directory(parent).entries.get(path.name)
            if found is None:
                self._tree.change(Entry(parent, path.name, self._tree.add(Directory())))
            elif not isinstance(self._tree.nodes[found], Directory):
                _fail(errno.EEXIST, path)

    def replace(self, source: Path, target: Path) -> None:
        self._announce(Operation(Kind.REPLACE, source, target=target))
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
            self._tree.change(Entry(source_parent, source.name, None), Entry(target_parent, target.name, moved))

    def remove(self, path: Path) -> None:
        self._announce(Operation(Kind.REMOVE, path))
        with self._lock:
            self._content(path)
            self._tree.change(Entry(self._parent(path), path.name, None))

    def remove_tree(self, path: Path) -> None:
        """Not one change but many, each announced."""
        self._announce(Operation(Kind.REMOVE_TREE, path))
        with self._lock:
            entries = dict(self._tree.directory(self._directory(path)).entries)
        for name, number in sorted(entries.items()):
            if isinstance(self._tree.nodes[number], Directory):
                self.remove_tree(path / name)
            else:
                self.remove(path / name)
        self._announce(Operation(Kind.REMOVE, path))
        with self._lock:
            if self._tree.directory(self._directory(path)).entries:
                _fail(errno.ENOTEMPTY, path)
            self._tree.change(Entry(self._parent(path), path.name, None))

    def sync_directory(self, path: Path) -> None:
        self._announce(Operation(Kind.SYNC_DIRECTORY, path))
        with self._lock:
            self._tree.sync(self._directory(path))

    def _with(self, tree: Tree) -> "SimulatedDisk":
        other = SimulatedDisk(self._sector_bytes)
        other._tree = tree
        return other

    def _announce(self, operation: Operation) -> None:
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
    """An open file; like `LocalFile` it looks its path up at first use, and again when used after `close`."""

    def __init__(
        self,
        path: Path,
        lock: threading.RLock,
        announce: Callable[[Operation], None],
        find: Callable[[Path], Content],
    ) -> None:
        self.path = path
        self._lock = lock
        self._announce = announce
        self._find = find
        self._opened: Content | None = None

    def write(self, buffers: Sequence[Bytes], position: int, *, durable: bool = False) -> int:
        data = b"".join(buffers)
        self._announce(Operation(Kind.WRITE, self.path, position, len(data)))
        with self._lock:
            content = self._content()
            if position < 0 or len(buffers) > MAX_BUFFERS:
                _fail(errno.EINVAL, self.path)
            content.write(data, position)
        if durable:
            self._announce(Operation(Kind.DATASYNC, self.path))
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
        self._announce(Operation(Kind.DATASYNC, self.path))
        with self._lock:
            self._content().datasync()

    def fail_datasync(self) -> None:
        """What a datasync does to the disk when it fails; raising the error is the caller's part."""
        self._announce(Operation(Kind.DATASYNC, self.path))
        with self._lock:
            self._content().fail_datasync()

    def allocate(self, end: int) -> None:
        self._announce(Operation(Kind.ALLOCATE, self.path, length=end))
        with self._lock:
            content = self._content()
            if end <= 0:
                _fail(errno.EINVAL, self.path)
            content.allocate(end)

    def truncate(self, length: int) -> None:
        self._announce(Operation(Kind.TRUNCATE, self.path, length=length))
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
