"""What it costs to bring telemetry from the log into its tables: processor time of Spark, its workers and the driver.

The question is whether one core writes what another one takes in, so rows are told by the core-second, as ingest is.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from icestream.broker_process import BrokerProcess
from icestream.client import Client
from icestream.config import Settings
from icestream_bench.pipeline import session, write_all
from icestream_bench.resources import tree_cpu_seconds


@contextlib.contextmanager
def pipeline_beside(broker: BrokerProcess) -> Iterator[Callable[[], dict[str, Any]]]:
    """A Spark session, idle until it is called: then it writes all that is durable, and tells how fast."""
    with Client(broker.flight) as client, session(Settings(data_dir=broker.data_dir), client) as (runner, _):

        def write() -> dict[str, Any]:
            began, used = perf_counter(), -_cpu_seconds(broker)
            rows = write_all(runner)
            seconds, used = perf_counter() - began, used + _cpu_seconds(broker)
            return {
                "rows": rows,
                "per_s": round(rows / seconds),
                "per_core_s": round(rows / max(used, 0.01)),
                "cores_used": round(used / seconds, 2),
            }

        yield write


def _cpu_seconds(broker: BrokerProcess) -> float:
    """Of this process, which is Spark's driver, and all that it has started; the broker's own work is no part of it."""
    return tree_cpu_seconds(os.getpid()) - tree_cpu_seconds(broker.pid)
