"""Runs `icestream demo` in a terminal of fixed width and writes its output to docs/images/demo.svg."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 100, 60
IMAGE = Path(__file__).parent.parent / "docs" / "images" / "demo.svg"
_CURSOR = re.compile(rb"\x1b\[[0-9;?]*[A-HJKSTfhl]|\r")


def record(command: list[str]) -> bytes:
    """Return what a command prints to a terminal."""
    terminal, theirs = pty.openpty()
    environ = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    output = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other end is closed: this is how a pseudo-terminal says so
            break
        output += piece
    if process.wait():
        sys.exit(f"the demo failed:\n{output.decode(errors='replace')}")
    return output


def last_picture(output: bytes) -> str:
    """Return the final lines, without the earlier states of progress bars."""
    lines: list[bytes] = []
    for line in re.split(rb"\r?\n", output):
        erased = line.count(b"\x1b[1A")
        if erased:
            del lines[-erased:]
        lines.append(_CURSOR.sub(b"", line.rsplit(b"\x1b[2K", 1)[-1]))
    return b"\n".join(lines).decode().strip("\n")


def main() -> None:
    output = record([str(Path(sys.executable).with_name("icestream")), "demo"])
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print("[bold green]$[/] make demo")
    console.print(Text.from_ansi(last_picture(output)))
    IMAGE.parent.mkdir(exist_ok=True)
    # Without the fonts that it would fetch from elsewhere: the reader's own monospace font serves as well.
    IMAGE.write_text(re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="icestream"), flags=re.DOTALL))
    print(f"wrote {IMAGE.name}")


if __name__ == "__main__":
    main()
