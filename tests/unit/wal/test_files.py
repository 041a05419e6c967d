"""Durable writes on the local file system."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from icestream.wal.files import LocalFiles, write_durably


class Calls:
    """The system calls that make bytes durable, on record; the first kind of them can be missing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, refused: int | None = None) -> None:
        self.seen: list[str] = []
        pwritev, fdatasync = os.pwritev, os.fdatasync

        def write(descriptor: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
            self.seen.append("write and sync" if flags == os.RWF_DSYNC else "write")
            if flags and refused is not None:
                raise OSError(refused, os.strerror(refused))
            return pwritev(descriptor, buffers, position, flags)

        def sync(descriptor: int) -> None:
            self.seen.append("sync")
            fdatasync(descriptor)

        monkeypatch.setattr(os, "pwritev", write)
        monkeypatch.setattr(os, "fdatasync", sync)


def test_one_call_writes_and_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    write_durably(LocalFiles().open(tmp_path / "f", create=True), [b"a", b"bc"], 0)
    assert calls.seen == ["write and sync"]
    assert (tmp_path / "f").read_bytes() == b"abc"


@pytest.mark.parametrize("refused", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_that_is_not_known_it_takes_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    calls = Calls(monkeypatch, refused=refused)
    write_durably(LocalFiles().open(tmp_path / "f", create=True), [b"a", b"bc"], 0)
    assert calls.seen == ["write and sync", "write", "sync"]
    assert (tmp_path / "f").read_bytes() == b"abc"


def test_any_other_error_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, refused=errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        write_durably(LocalFiles().open(tmp_path / "f", create=True), [b"a"], 0)
    assert calls.seen == ["write and sync"]


def test_more_buffers_than_a_call_takes_are_synced_behind_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    pieces = [bytes([number % 256]) for number in range(2500)]
    write_durably(LocalFiles().open(tmp_path / "f", create=True), pieces, 0)
    assert calls.seen == ["write"] * 3 + ["sync"]
    assert (tmp_path / "f").read_bytes() == b"".join(pieces)
