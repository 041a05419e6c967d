"""The oracle notices every way in which a log can be wrong."""

from dataclasses import replace

import pytest
from tests.log_model import Batch, Kept, LogModel, ManualPool, open_log, submit_together

from icestream.testing import SimulatedDisk
from icestream.wal import Log, LogOptions


@pytest.fixture
def model() -> LogModel:
    return LogModel()


@pytest.fixture
def log(model: LogModel) -> Log:
    """Holds three batches of producer a, of two messages each."""
    log = open_log(SimulatedDisk(), LogOptions())
    for _ in range(3):
        batch = model.new_batch("a", 2, 10)
        model.acknowledge(batch, log.append(batch.payload()).base_offset)
    return log


def test_a_log_that_holds_what_it_promised_is_fine(log: Log, model: LogModel) -> None:
    model.check(log)
    assert model.end_offset == 6


def test_a_lost_frame_is_noticed(log: Log, model: LogModel) -> None:
    model.acknowledge(model.new_batch("", 1, 10), 6)
    with pytest.raises(AssertionError, match="4 frames up to offset 7 were acknowledged, 3 are there"):
        model.check(log)


def test_other_bytes_are_noticed(log: Log, model: LogModel) -> None:
    first, second, third = model.kept
    wrong = replace(model, kept=(first, Kept(second.base_offset, third.batch), third))
    with pytest.raises(AssertionError, match="other bytes than acknowledged at offset 2"):
        wrong.check(log)


def test_a_frame_that_nobody_sent_is_noticed(log: Log, model: LogModel) -> None:
    log.append(Batch("x", 0, 1, b"out of nowhere").payload())
    with pytest.raises(AssertionError, match="the frame at offset 6 was never sent"):
        model.check(log)


@pytest.mark.usefixtures("log")
def test_a_batch_stored_twice_is_noticed(model: LogModel) -> None:
    with pytest.raises(AssertionError, match="the batch a:0 was stored twice"):
        model.acknowledge(model.kept[0].batch, 6)


@pytest.mark.usefixtures("log")
def test_a_duplicate_with_another_offset_is_noticed(model: LogModel) -> None:
    with pytest.raises(AssertionError, match="the batch a:2 moved from offset 2"):
        model.acknowledge(model.kept[1].batch, 4, duplicate=True)
    with pytest.raises(AssertionError, match="never was acknowledged before"):
        model.acknowledge(model.new_batch("a", 1, 10), 6, duplicate=True)


def test_a_forgotten_producer_is_noticed(log: Log, model: LogModel) -> None:
    model.kept = tuple(kept._replace(batch=kept.batch._replace(producer="b")) for kept in model.kept)
    model.sent = {kept.batch.body: kept.batch for kept in model.kept}
    with pytest.raises(AssertionError):
        model.check(log)


def test_what_was_not_acknowledged_may_be_there_and_must_stay_then(log: Log, model: LogModel) -> None:
    batch = model.new_batch("a", 1, 10)
    log.append(batch.payload())
    model.check(log)
    assert model.find(batch) == Kept(6, batch)


def test_what_was_not_acknowledged_and_is_not_there_is_given_up(log: Log, model: LogModel) -> None:
    batch = model.new_batch("a", 1, 10)
    model.check(log)
    assert batch.body not in model.sent
    assert model.new_batch("a", 1, 10).sequence == batch.sequence


def test_a_manual_pool_commits_everything_that_queued_in_one_go(model: LogModel) -> None:
    pool = ManualPool()
    log = open_log(SimulatedDisk(), LogOptions(), pool)
    submit_together(log, model, [model.new_batch("a", 1, 10) for _ in range(5)])
    assert (log.durable_end, model.end_offset) == (0, 0)
    pool.run()
    assert (log.durable_end, model.end_offset) == (5, 5)
