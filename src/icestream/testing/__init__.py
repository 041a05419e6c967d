"""Disks for tests: one that can lose its power at any write, and one that fails on demand.

Both stand in for the file system port of the log (`icestream.wal.files.Files`), and are of use to anyone who writes
files that must survive.

* `SimulatedDisk` lives in memory and knows at each moment what is durable and what is not. `power_cut(rng)` gives
  the disk as it may be found afterwards: any of the unsynced sectors written or not, in any order; sizes grown or
  not; names created, renamed and removed or not. `all_power_cut_states()` gives every such state, where they are few.
* `FaultyFiles` wraps any files and lets calls fail as a `FaultPlan` says: errors, short writes, the end of the process.

    disk = SimulatedDisk()
    disk.on_operation = lambda operation: snapshots.append((operation, disk.snapshot()))
    run_the_program(disk)
    for operation, snapshot in snapshots:
        check_recovery(snapshot.power_cut(random.Random(seed)))

Simulated rules are those of Linux file systems, at their worst: see `content` for bytes and `tree` for names.
"""

from icestream.testing.faults import (
    MUTATING,
    Call,
    Crash,
    Fail,
    Fault,
    FaultPlan,
    FaultyFiles,
    Kind,
    Operation,
    ShortWrite,
    SimulatedCrash,
)
from icestream.testing.simulated_disk import PAGE_BYTES, SECTOR_BYTES, NameLoss, SimulatedDisk, SimulatedFile, Tearing

__all__ = [
    "MUTATING",
    "PAGE_BYTES",
    "SECTOR_BYTES",
    "Call",
    "Crash",
    "Fail",
    "Fault",
    "FaultPlan",
    "FaultyFiles",
    "Kind",
    "NameLoss",
    "Operation",
    "ShortWrite",
    "SimulatedCrash",
    "SimulatedDisk",
    "SimulatedFile",
    "Tearing",
]
