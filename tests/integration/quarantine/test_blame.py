"""No frame is put aside for what is the workers' fault, and a frame is for what is its own."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.integration.pipeline.conftest import Pipelines
from tests.integration.quarantine.conftest import CrashingAt, drain, offsets, settings_of, table_of

from icestream.app import Broker
from icestream.pipeline import tasks
from icestream.pipeline.tasks import WORKER_OPERATION, Work, Written
from icestream.table.writer import WriteSession

add = WriteSession.add


def failing(
    error: Exception, is_wrong: Callable[[pa.RecordBatch], bool]
) -> Callable[[WriteSession, pa.RecordBatch], None]:
    def failing_add(self: WriteSession, batch: pa.RecordBatch) -> None:
        if is_wrong(batch):
            raise error
        add(self, batch)

    return failing_add


def is_poison(batch: pa.RecordBatch) -> bool:
    return b"poison" in batch.column("payload").to_pylist()


@pytest.mark.parametrize(
    "error",
    [MemoryError("malloc failed"), pa.ArrowMemoryError("malloc failed"), ImportError("no module"), OSError("no file")],
)
def test_what_a_worker_lacks_is_no_frames_fault(
    site: Pipelines, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Not even where one frame alone needs it: a large one, of all things, comes to the end of a worker's memory."""
    site.publish("lacking", [b"a"], [b"large"], [b"b"])
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "_write_range", _lacking(error))
        figures = drain(site)[site.topic("lacking")]
        assert WORKER_OPERATION in str(figures.error)
    assert table_of(site, "lacking").quarantined == ()
    assert drain(site)[site.topic("lacking")].error is None
    site.check("lacking", [b"a", b"large", b"b"])


def _lacking(error: Exception) -> Callable[[Work, int, int, float], Written]:
    real = tasks._write_range

    def write_range(work: Work, start: int, end: int, began: float) -> Written:
        if start <= 1 < end:
            raise error
        return real(work, start, end, began)

    return write_range


def test_what_nobody_foresaw_is_no_frames_fault_while_nothing_else_can_be_written(
    site: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.publish("sick", [b"a"], [b"b"])
    with monkeypatch.context() as patch:
        patch.setattr(WriteSession, "add", failing(ValueError("out of tune"), lambda _batch: True))
        figures = drain(site)[site.topic("sick")]
        assert "cannot write a made-up row either" in str(figures.error)
        assert "out of tune" in str(figures.error)
    assert table_of(site, "sick").quarantined == ()
    assert drain(site)[site.topic("sick")].error is None
    site.check("sick", [b"a", b"b"])


def test_workers_that_all_die_blame_nobody_and_what_is_written_once_comes_to_an_end(site: Pipelines) -> None:
    site.publish("dying", [b"a"])
    jobs = CrashingAt(-1)
    jobs.is_sick = True
    assert "cannot write a made-up row either" in str(drain(site, jobs)[site.topic("dying")].error)
    assert table_of(site, "dying").quarantined == ()
    jobs.is_sick = False
    assert drain(site, jobs)[site.topic("dying")].error is None
    site.check("dying", [b"a"])


@pytest.mark.parametrize("kept_as", ["iceberg", "both"])
def test_what_nobody_foresaw_is_the_fault_of_a_frame_that_alone_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_as: str
) -> None:
    with Broker(settings_of(tmp_path / "data", storage={"format": kept_as})) as broker:
        site = Pipelines(broker.settings.data_dir, broker.doors["flight"], "aside")
        site.publish("odd", *([f"{number}".encode()] for number in range(9)), [b"poison"], [b"b"])
        monkeypatch.setattr(WriteSession, "add", failing(ValueError("out of tune"), is_poison))
        figures = drain(site)[site.topic("odd")]
        assert (figures.error, figures.quarantined) == (None, 1)
        assert offsets(site, "odd") == [*range(9), 10]
        files = [path for path in broker.settings.data_dir.rglob("*.parquet") if "aside" in str(path)]
        rows = sum(pq.read_metadata(path).num_rows for path in files)
        assert rows == 10 * (2 if kept_as == "both" else 1), "the row that was made up is nowhere"
        site.close()
