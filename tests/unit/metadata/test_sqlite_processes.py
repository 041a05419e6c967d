import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from icestream.metadata import SqliteMetadataStore
from icestream.model.clock import now_us

PATIENCE_SECONDS = 60

PRELUDE = """
import sys
from pathlib import Path
from icestream.metadata import Put, SqliteMetadataStore
from icestream.model.errors import ConflictError
path = Path(sys.argv[1])
"""

# Ends before the history would drop its first change, however late the kill comes.
WRITE_PAIRS_UNTIL_KILLED = """
store = SqliteMetadataStore(path)
for n in range(1, 2_000):
    store.transaction([], [Put("/pair/a", b"%d" % n), Put("/pair/b", b"%d" % n), Put(f"/each/{n}", b"")])
    print(n, flush=True)
sys.stdin.read()
"""

HOLD_A_LEASE = """
store = SqliteMetadataStore(path)
store.put("/owner", b"child", lease=store.lease(60).id)
print("held", flush=True)
sys.stdin.read()
"""

COUNT_ON_COMMAND = """
store = SqliteMetadataStore(path, busy_timeout_seconds=60)
print("ready", flush=True)
sys.stdin.readline()
done = 0
while done < 40:
    entry = store.get("/counter")
    try:
        store.compare_and_swap(
            "/counter", entry.mod_revision if entry else 0, b"%d" % (int(entry.value if entry else 0) + 1)
        )
    except ConflictError:
        continue
    done += 1
store.close()
"""

OPEN_ON_COMMAND = """
print("ready", flush=True)
sys.stdin.readline()
with SqliteMetadataStore(path, busy_timeout_seconds=60) as store:
    store.put(f"/opened/{sys.argv[2]}", b"")
"""

PUT_ON_COMMAND = """
store = SqliteMetadataStore(path, busy_timeout_seconds=60)
print("ready", flush=True)
for line in sys.stdin:
    store.put("/w/" + line.strip(), b"from the child")
"""


@contextmanager
def process(script: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", PRELUDE + script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def line_from(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def tell(child: "subprocess.Popen[str]", text: str) -> None:
    assert child.stdin is not None
    child.stdin.write(text + "\n")
    child.stdin.flush()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


@pytest.mark.parametrize("acknowledged", [1, 7, 40])
def test_a_killed_writer_leaves_whole_transactions_and_all_it_acknowledged(path: Path, acknowledged: int) -> None:
    with process(WRITE_PAIRS_UNTIL_KILLED, path) as child:
        for n in range(1, acknowledged + 1):
            assert line_from(child) == str(n)
        child.kill()
        child.wait()
    with SqliteMetadataStore(path) as store:
        a, b = store.list("/pair/")
        assert (a.value, a.mod_revision) == (b.value, b.mod_revision)
        written = int(a.value)
        assert written >= acknowledged
        assert len(store.list("/each/", limit=10_000)) == written
        assert store.revision() == a.mod_revision
        with store.watch("/each/", start_revision=1) as watch:
            assert [next(watch).key for _ in range(min(written, 50))] == [
                f"/each/{n}" for n in range(1, min(written, 50) + 1)
            ]
        assert store.put("/pair/a", b"next") == a.mod_revision + 1


def test_the_lease_of_a_killed_process_ends_in_time(path: Path) -> None:
    with process(HOLD_A_LEASE, path) as child:
        assert line_from(child) == "held"
        child.kill()
        child.wait()
    with SqliteMetadataStore(path) as store:
        entry = store.get("/owner")
        assert entry is not None
        assert entry.value == b"child"
    with SqliteMetadataStore(path, clock=lambda: now_us() + 61_000_000) as store:
        assert store.get("/owner") is None


def test_processes_that_swap_one_counter_lose_no_update(path: Path) -> None:
    with (
        process(COUNT_ON_COMMAND, path) as one,
        process(COUNT_ON_COMMAND, path) as two,
        SqliteMetadataStore(path, busy_timeout_seconds=60) as store,
    ):
        for child in (one, two):
            assert line_from(child) == "ready"
        for child in (one, two):
            tell(child, "go")
        for child in (one, two):
            assert child.wait(PATIENCE_SECONDS) == 0
        entry = store.get("/counter")
        assert entry is not None
        assert entry.value == b"80"


def test_processes_that_open_a_new_file_at_once_share_one_store(path: Path) -> None:
    with process(OPEN_ON_COMMAND, path, 1) as one, process(OPEN_ON_COMMAND, path, 2) as two:
        for child in (one, two):
            assert line_from(child) == "ready"
        for child in (one, two):
            tell(child, "go")
        for child in (one, two):
            assert child.wait(PATIENCE_SECONDS) == 0
    with SqliteMetadataStore(path) as store:
        assert [entry.key for entry in store.list("/opened/")] == ["/opened/1", "/opened/2"]


def test_a_watch_sees_another_processs_changes_between_its_own(path: Path) -> None:
    with (
        SqliteMetadataStore(path, busy_timeout_seconds=60) as store,
        store.watch("/w/") as watch,
        process(PUT_ON_COMMAND, path) as child,
    ):
        assert line_from(child) == "ready"
        for n in range(5):
            tell(child, f"child-{n}")
            assert [event.key for event in watch.wait(PATIENCE_SECONDS)] == [f"/w/child-{n}"]
            store.put(f"/w/own-{n}", b"")
            assert [event.key for event in watch.wait(PATIENCE_SECONDS)] == [f"/w/own-{n}"]
