import threading
from contextlib import closing

import pytest

from icestream.wal import CommitPool


def test_work_is_done_by_its_threads_and_finished_before_it_closes() -> None:
    done: list[str] = []
    with closing(CommitPool(3)) as pool:
        for _ in range(100):
            pool.submit(lambda: done.append(threading.current_thread().name))
    assert len(done) == 100
    assert set(done) <= {"commit-0", "commit-1", "commit-2"}


def test_work_that_fails_takes_no_thread_with_it() -> None:
    done: list[int] = []

    def fail() -> None:
        raise RuntimeError("odd")

    with closing(CommitPool(1)) as pool:
        pool.submit(fail)
        pool.submit(lambda: done.append(1))
    assert done == [1]


def test_nothing_is_taken_once_it_is_closed() -> None:
    pool = CommitPool(1)
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(lambda: None)
