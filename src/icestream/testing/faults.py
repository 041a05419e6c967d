"""A file system that fails as a plan says.

`FaultyFiles` wraps any `Files`. Before each call it asks its `FaultPlan`. The first rule that matches decides:

* `Fail` raises an `OSError`. A write or an allocation may do a part of its work first.
* `ShortWrite` writes only some of the bytes, as a nearly full disk does.
* `Crash` raises `SimulatedCrash` from this and every later call: the process is dead and changes nothing any more.
* `Call` runs a function, then lets the call go on: to wait, to look, or to change the plan.

Over a `SimulatedDisk` a failed datasync also loses what a real disk may lose.
"""

import errno
import os
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from icestream.model.frames import Bytes
from icestream.wal import File, Files


class Kind(StrEnum):
    OPEN = "open"
    CREATE = "create"
    READ = "read"
    WRITE = "write"
    DATASYNC = "datasync"
    ALLOCATE = "allocate"
    TRUNCATE = "truncate"
    NAMES = "names"
    MAKE_DIRECTORY = "make_directory"
    REPLACE = "replace"
    REMOVE = "remove"
    REMOVE_TREE = "remove_tree"
    SYNC_DIRECTORY = "sync_directory"


MUTATING = frozenset(Kind) - {Kind.OPEN, Kind.READ, Kind.NAMES}


@dataclass(frozen=True, slots=True)
class DiskOperation:
    """A call of the file system. `position` and `length` are bytes; allocate and truncate: `length` is the new size."""

    kind: Kind
    path: Path
    position: int = 0
    length: int = 0
    target: Path | None = None

    def __str__(self) -> str:
        text = f"{self.kind} {self.path}"
        if self.target is not None:
            return f"{text} -> {self.target}"
        if self.kind in (Kind.WRITE, Kind.READ):
            return f"{text} [{self.position}, {self.position + self.length})"
        if self.kind in (Kind.ALLOCATE, Kind.TRUNCATE):
            return f"{text} to {self.length}"
        return text


class SimulatedCrash(BaseException):
    """The process ends here. It is no `Exception`, so that no handler catches it."""


@dataclass(frozen=True, slots=True)
class Fail:
    code: int = errno.EIO
    accept: int = 0
    """How many bytes a write writes before it fails, or what size an allocation reaches."""


@dataclass(frozen=True, slots=True)
class ShortWrite:
    accept: int


@dataclass(frozen=True, slots=True)
class Crash:
    accept: int = 0
    """How many bytes a write writes before the process ends."""


@dataclass(frozen=True, slots=True)
class Call:
    function: Callable[[DiskOperation], None]


Fault: TypeAlias = Fail | ShortWrite | Crash | Call


@dataclass(slots=True)
class Rule:
    """Applies a fault to calls of some kinds on matching paths: to the `nth` and the following, `times` in all."""

    fault: Fault
    kinds: frozenset[Kind] = MUTATING
    path: str = "*"
    nth: int = 1
    times: int | None = 1
    """None: to all from the `nth` on."""
    chance: float = 1.0
    """The share of those calls that fail, by the plan's random numbers."""
    seen: int = field(default=0, init=False)
    met: int = field(default=0, init=False)

    def sees(self, operation: DiskOperation) -> bool:
        """Count the call if it matches, and return whether the fault may apply to it."""
        if operation.kind not in self.kinds or not fnmatch(str(operation.path), self.path):
            return False
        self.seen += 1
        return self.seen >= self.nth and (self.times is None or self.met < self.times)

    def meets(self, rng: random.Random) -> bool:
        if self.chance < 1.0 and rng.random() >= self.chance:
            return False
        self.met += 1
        return True


class FaultPlan:
    """Rules in order of precedence. They may be added and cleared while the files are in use."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.injected: list[tuple[DiskOperation, Fault]] = []
        self._rng = rng or random.Random(0)  # noqa: S311 - the same faults each time
        self._rules: list[Rule] = []
        self._lock = threading.Lock()

    @classmethod
    def random(cls, seed: int, chance: float = 0.05, kinds: Iterable[Kind] = MUTATING) -> "FaultPlan":
        """Return a plan by which each such call fails with this chance, in a way that fits its kind."""
        rng = random.Random(seed)  # noqa: S311 - the same faults each time
        plan = cls(rng)
        for kind in sorted(kinds):
            plan.add(Fail(errno.EIO), kind, times=None, chance=chance)
            if kind in (Kind.WRITE, Kind.ALLOCATE, Kind.CREATE, Kind.REPLACE, Kind.MAKE_DIRECTORY):
                full = rng.choice((errno.ENOSPC, errno.EDQUOT))
                plan.add(Fail(full, rng.randrange(1024)), kind, times=None, chance=chance)
            if kind is Kind.WRITE:
                plan.add(ShortWrite(rng.randrange(1, 1024)), kind, times=None, chance=chance)
        return plan

    def add(
        self,
        fault: Fault,
        *kinds: Kind,
        path: str = "*",
        nth: int = 1,
        times: int | None = 1,
        chance: float = 1.0,
    ) -> "FaultPlan":
        """Add a rule for calls of these kinds; without kinds, for every call that changes something."""
        with self._lock:
            self._rules.append(Rule(fault, frozenset(kinds) or MUTATING, path, nth, times, chance))
        return self

    def clear(self) -> None:
        """Remove all rules. `injected` stays."""
        with self._lock:
            self._rules.clear()

    def decide(self, operation: DiskOperation) -> Fault | None:
        with self._lock:
            for rule in [rule for rule in self._rules if rule.sees(operation)]:
                if rule.meets(self._rng):
                    self.injected.append((operation, rule.fault))
                    return rule.fault
        return None


@runtime_checkable
class LosesOnFailedSync(Protocol):
    """A file that can simulate the losses of a failed datasync."""

    def fail_datasync(self) -> None: ...


def _nothing(_fault: Fail | Crash) -> None:
    pass


class FaultyFiles:
    def __init__(self, inner: Files, plan: FaultPlan | None = None) -> None:
        self.inner = inner
        self.plan = plan or FaultPlan()
        self.crashed = False

    def open(self, path: Path, *, create: bool = False) -> File:
        self.meet(DiskOperation(Kind.CREATE if create else Kind.OPEN, path))
        return _FaultyFile(self, self.inner.open(path, create=create), path)

    def read_bytes(self, path: Path) -> bytes:
        self.meet(DiskOperation(Kind.READ, path))
        return self.inner.read_bytes(path)

    def exists(self, path: Path) -> bool:
        self.check_alive()
        return self.inner.exists(path)

    def size(self, path: Path) -> int:
        self.check_alive()
        return self.inner.size(path)

    def names(self, directory: Path) -> list[str]:
        self.meet(DiskOperation(Kind.NAMES, directory))
        return self.inner.names(directory)

    def make_directory(self, path: Path) -> None:
        self.meet(DiskOperation(Kind.MAKE_DIRECTORY, path))
        self.inner.make_directory(path)

    def replace(self, source: Path, target: Path) -> None:
        self.meet(DiskOperation(Kind.REPLACE, source, target=target))
        self.inner.replace(source, target)

    def remove(self, path: Path) -> None:
        self.meet(DiskOperation(Kind.REMOVE, path))
        self.inner.remove(path)

    def remove_tree(self, path: Path) -> None:
        self.meet(DiskOperation(Kind.REMOVE_TREE, path))
        self.inner.remove_tree(path)

    def sync_directory(self, path: Path) -> None:
        self.meet(DiskOperation(Kind.SYNC_DIRECTORY, path))
        self.inner.sync_directory(path)

    def check_alive(self) -> None:
        if self.crashed:
            raise SimulatedCrash

    def meet(
        self, operation: DiskOperation, before_failing: Callable[[Fail | Crash], None] = _nothing
    ) -> ShortWrite | None:
        """Apply the plan's fault to a call. `before_failing` does the part of the call that happens nevertheless."""
        self.check_alive()
        fault = self.plan.decide(operation)
        match fault:
            case Call(function):
                function(operation)
                self.check_alive()
            case ShortWrite():
                return fault
            case Fail(code):
                before_failing(fault)
                raise OSError(code, os.strerror(code), str(operation.path))
            case Crash():
                before_failing(fault)
                self.crashed = True
                raise SimulatedCrash(str(operation))
            case None:
                pass
        return None


class _FaultyFile:
    def __init__(self, files: FaultyFiles, inner: File, path: Path) -> None:
        self._files = files
        self._inner = inner
        self._path = path

    def write(self, buffers: Sequence[Bytes], position: int, *, durable: bool = False) -> int:
        """Write. A durable write counts as two operations: a write and a datasync."""
        length = sum(map(len, buffers))

        def write_part(fault: Fail | Crash) -> None:
            self._inner.write([b"".join(buffers)[: fault.accept]], position)

        short = self._files.meet(DiskOperation(Kind.WRITE, self._path, position, length), write_part)
        if short is not None and short.accept < length:
            buffers = [b"".join(buffers)[: short.accept]]

        if durable:
            # Written first, so that a hook at the moment of the sync finds the bytes there, and not yet durable.
            self._inner.write(buffers, position)
            self._files.meet(DiskOperation(Kind.DATASYNC, self._path), self._lose)
        return self._inner.write(buffers, position, durable=durable)

    def read(self, length: int, position: int) -> bytes:
        self._files.meet(DiskOperation(Kind.READ, self._path, position, length))
        return self._inner.read(length, position)

    def datasync(self) -> None:
        self._files.meet(DiskOperation(Kind.DATASYNC, self._path), self._lose)
        self._inner.datasync()

    def _lose(self, fault: Fail | Crash) -> None:
        if isinstance(fault, Fail) and isinstance(self._inner, LosesOnFailedSync):
            self._inner.fail_datasync()

    def allocate(self, end: int) -> None:
        def allocate_part(fault: Fail | Crash) -> None:
            if fault.accept:
                self._inner.allocate(min(fault.accept, end))

        self._files.meet(DiskOperation(Kind.ALLOCATE, self._path, length=end), allocate_part)
        self._inner.allocate(end)

    def truncate(self, length: int) -> None:
        self._files.meet(DiskOperation(Kind.TRUNCATE, self._path, length=length))
        self._inner.truncate(length)

    def size(self) -> int:
        self._files.check_alive()
        return self._inner.size()

    def close(self) -> None:
        """Close; never fails, because the files of a dead process are closed too."""
        self._inner.close()
