import os
import threading
from pathlib import Path

import pytest

from icestream.cli.produce import read_lines
from icestream.model.errors import TooLargeError


def lines_of(path: Path, **options: int) -> list[bytes]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return [line for lines in read_lines(descriptor, **options) for line in lines]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 5, 7, 100])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\nbc\n", [b"a", b"bc"]),
        (b"a\n\n\nbc", [b"a", b"", b"", b"bc"]),
        (b"\r\n\x00\xff\n", [b"\r", b"\x00\xff"]),
        (b"a longer line\nand another", [b"a longer line", b"and another"]),
    ],
)
def test_chunks_of_any_size_give_the_same_lines(
    tmp_path: Path, content: bytes, lines: list[bytes], chunk_bytes: int
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(content)
    assert lines_of(path, chunk_bytes=chunk_bytes) == lines


def test_a_line_may_not_be_endless(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"short\n" + b"x" * 1000)
    with pytest.raises(TooLargeError, match="more than 100 bytes"):
        lines_of(path, chunk_bytes=10, max_line_bytes=100)


def test_what_a_pipe_has_comes_without_waiting_for_its_end() -> None:
    receiving, sending = os.pipe()
    try:
        lines = read_lines(receiving)
        os.write(sending, b"one\ntwo\nthr")
        assert next(lines) == [b"one", b"two"]
        os.write(sending, b"ee\n")
        assert next(lines) == [b"three"]
        os.close(sending)
        assert list(lines) == []
    finally:
        os.close(receiving)


def test_a_pipe_that_lingers_collects_what_comes_in_pieces() -> None:
    receiving, sending = os.pipe()

    def write() -> None:
        for number in range(100):
            os.write(sending, b"%d\n" % number)
        os.close(sending)

    writer = threading.Thread(target=write)
    try:
        lines = read_lines(receiving, linger_s=600)  # the end of the pipe ends it long before
        writer.start()
        assert next(lines) == [b"%d" % number for number in range(100)]
        assert list(lines) == []
    finally:
        writer.join()
        os.close(receiving)
