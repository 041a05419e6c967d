"""Installs the servers that the tests need and this machine lacks, into the cache folder outside the clone.

Takes a second when everything is there. For a server that cannot be installed it prints the reason. With CI=true that
is a failure; elsewhere the tests of that server are skipped.
"""

import os
import sys
import time

from icestream.model.errors import IcestreamError
from icestream_servers import SERVERS, missing, obtain


def say(line: str) -> None:
    print(f"servers: {line}", flush=True)


def main() -> int:
    failed = []
    for name in SERVERS:
        began = time.monotonic()
        try:
            obtain(name, say)
        except IcestreamError as error:
            say(str(error))
        if reason := missing(name):
            failed.append(f"{name} ({reason})")
        elif (took_seconds := time.monotonic() - began) > 1:
            say(f"{name} was obtained in {took_seconds:.0f} s")
    if failed:
        say(f"not available: {', '.join(failed)}")
    return 1 if failed and os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
