"""Runs commands, several at the same time, and never mixes two lines.

    python dev/side_by_side.py 2 'pytest tests/unit' 'pytest tests/integration' ...

Prints progress at once, and the report at the end of each pytest run as a whole. A failed command does not stop the
others. Exit code 1 if any command failed.
"""

import shlex
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

_output = threading.Lock()


def say(text: str) -> None:
    with _output:
        sys.stdout.write(text)
        sys.stdout.flush()


def is_report(line: str) -> bool:
    """Return whether pytest's report begins with this line."""
    return line.startswith("=====") and "test session starts" not in line


def run(command: str) -> int:
    report: list[str] = []
    with subprocess.Popen(
        shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if report or is_report(line):
                report.append(line)
            else:
                say(line)
    say("".join([*report, f"{command}: exit code {process.returncode}\n"]))
    return process.returncode


def main() -> None:
    at_once, *commands = sys.argv[1:]
    with ThreadPoolExecutor(int(at_once)) as pool:
        codes = list(pool.map(run, commands))
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    main()
