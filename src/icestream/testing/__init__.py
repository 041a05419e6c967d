"""Tools for tests of programs that use icestream, or that write files which must survive a crash.

* `BrokerProcess` runs a real broker as a child process: start it, stop it, kill it, start it again on its data.
* `SimulatedDisk` is a disk in memory that can lose its power. It tracks which bytes and names are durable.
  `power_cut(rng)` returns the disk as it may be found afterwards: any unsynced sector written or not, in any order;
  sizes grown or not; names created, renamed and removed or not. `all_power_cut_states()` returns every such state.
* `FaultyFiles` wraps any files. Calls fail as a `FaultPlan` says: errors, short writes, the end of the process.
* `HistoryChecker` records what producers sent and which acknowledgements they got, and checks a topic against it:
  nothing acknowledged is lost, doubled, changed or out of order.

`SimulatedDisk` and `FaultyFiles` implement the log's file system port (`icestream.wal.Files`). The simulated rules are
those of Linux file systems in the worst case.

    disk = SimulatedDisk()
    disk.on_operation = lambda operation: snapshots.append((operation, disk.snapshot()))
    run_the_program(disk)
    for operation, snapshot in snapshots:
        check_recovery(snapshot.power_cut(random.Random(seed)))

    with BrokerProcess(tmp_path / "data") as broker, Client(broker.flight) as client:
        ...
"""

from icestream.broker_process import BrokerProcess
from icestream.testing.faults import (
    MUTATING,
    Call,
    Crash,
    DiskOperation,
    Fail,
    Fault,
    FaultPlan,
    FaultyFiles,
    Kind,
    ShortWrite,
    SimulatedCrash,
)
from icestream.testing.history import HistoryChecker, StoredMessage, rows
from icestream.testing.simulated_disk import PAGE_BYTES, SECTOR_BYTES, NameLoss, SimulatedDisk, SimulatedFile, Tearing

__all__ = [
    "MUTATING",
    "PAGE_BYTES",
    "SECTOR_BYTES",
    "BrokerProcess",
    "Call",
    "Crash",
    "DiskOperation",
    "Fail",
    "Fault",
    "FaultPlan",
    "FaultyFiles",
    "HistoryChecker",
    "Kind",
    "NameLoss",
    "ShortWrite",
    "SimulatedCrash",
    "SimulatedDisk",
    "SimulatedFile",
    "StoredMessage",
    "Tearing",
    "rows",
]
