"""A callback that raises concerns nobody but its own producer."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import structlog
from tests.unit.wal.conftest import STREAM, batch

from icestream.model.errors import ProducerFencedError
from icestream.wal import Append, CommitPool, LocalFiles, Log, LogContext
from icestream.wal.group_commit import GroupCommit


def broken(_: Append) -> None:
    raise RuntimeError("a broken callback")


def test_a_callback_that_raises_leaves_the_log_acknowledging(open_log: Callable[..., Log]) -> None:
    log = open_log()
    with structlog.testing.capture_logs() as lines:
        log.submit(batch("a"), broken, inline=True)
    assert [line["event"] for line in lines] == ["append_callback_failed"]
    acknowledged: list[int] = []
    log.submit(batch("b"), lambda append: acknowledged.append(append.base_offset), inline=True)
    assert acknowledged == [1]


def test_a_callback_that_raises_keeps_no_other_of_its_group_from_its_acknowledgement(
    open_log: Callable[..., Log],
) -> None:
    log = open_log()
    acknowledged: list[int] = []
    last = Append(batch("b"), lambda append: acknowledged.append(append.base_offset))
    log.submit_all([Append(batch("a"), broken), last], inline=True)
    assert acknowledged == [1]


def test_a_refused_batch_whose_callback_raises_keeps_no_other_from_being_stored(open_log: Callable[..., Log]) -> None:
    log = open_log()
    log.open_producer("p", 2)
    refused = Append(batch("a", producer="p"), broken, session=1)
    acknowledged: list[int] = []
    stored = Append(batch("b"), lambda append: acknowledged.append(append.base_offset))
    log.submit_all([refused, stored], inline=True)
    assert isinstance(refused.error, ProducerFencedError)
    assert acknowledged == [0]
    assert log.append(batch("c")).base_offset == 1


def test_a_pool_thread_outlives_a_callback_that_raises(tmp_path: Path) -> None:
    with closing(CommitPool(1)) as pool:
        context = LogContext(LocalFiles(), pool=pool)
        log = Log.create(context, tmp_path / "log", STREAM)
        log.submit(batch("a"), broken, inline=False)
        assert log.append(batch("b")).base_offset == 1
        log.close()


def test_a_group_is_refused_whole_when_its_callbacks_raise_too() -> None:
    def fail(_: list[Append]) -> None:
        raise OSError("no disk")

    refusal = ProducerFencedError("refused", operation="append")
    commits = GroupCommit(commit=fail, failed=lambda _: refusal, max_group_bytes=1, pool=None)
    appends = [Append(batch("a"), broken), Append(batch("b"), broken)]
    commits.add_all(appends, lambda _: None, inline=True)
    assert [append.error for append in appends] == [refusal, refusal]
