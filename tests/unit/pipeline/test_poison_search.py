"""From a range that fails to the frame that is to blame."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.model.errors import (
    CatalogUnavailableError,
    ClosedError,
    CommitConflictError,
    DamagedError,
    DeadlineError,
    IcestreamError,
    IncompatibleTableError,
    InvalidMessageError,
    LogUnavailableError,
    OffsetOutOfRangeError,
    OverloadedError,
    StaleEpochError,
    TopicNotFoundError,
    UnavailableError,
)
from icestream.pipeline.quarantine.poison_search import PoisonSearch, may_be_the_messages
from icestream.pipeline.spark.session import JobFailedError, SessionLostError
from icestream.pipeline.tasks import WORKER_OPERATION, WRITE_OPERATION


@pytest.mark.parametrize(
    "error",
    [
        DamagedError("the body cannot be decoded", operation="decode"),
        InvalidMessageError("no such value"),
        IcestreamError("ArrowInvalid: it does not fit", operation=WRITE_OPERATION, retryable=True),
        JobFailedError("a worker died"),
    ],
)
def test_what_messages_can_be_the_cause_of_counts(error: IcestreamError) -> None:
    assert may_be_the_messages(error)


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("x"),
        CatalogUnavailableError("x"),
        DeadlineError("x"),
        OverloadedError("x"),
        LogUnavailableError("x"),
        ClosedError("x"),
        TopicNotFoundError("x"),
        StaleEpochError("x"),
        CommitConflictError("x"),
        OffsetOutOfRangeError("x"),
        IncompatibleTableError("x"),
        SessionLostError("x"),
        DamagedError("the range ended early", retryable=True),
        IcestreamError("the broker failed", operation="read"),
        IcestreamError("MemoryError: malloc failed", operation=WORKER_OPERATION, retryable=True),
    ],
)
def test_what_is_nobodys_message_does_not(error: IcestreamError) -> None:
    assert not may_be_the_messages(error)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200), st.data())
def test_whichever_frame_it_is_it_is_found_and_all_before_it_are_written(
    counts: list[int], data: st.DataObject
) -> None:
    ends = [sum(counts[: number + 1]) for number in range(len(counts))]
    bad = data.draw(st.integers(0, len(ends) - 1))
    first = ends[bad - 1] if bad else 0
    poison_search = PoisonSearch(0)
    committed, tries = 0, 0
    alone = poison_search.narrow(ends, ends[-1])
    while not alone or tries == 0:
        limit = poison_search.limit
        assert limit is not None
        tries += 1
        if limit <= first:
            committed = limit
            assert poison_search.continues_after(committed)
        else:
            alone = poison_search.narrow(poison_search.ends, limit)
    assert (committed, poison_search.start, poison_search.ends) == (first, first, (ends[bad],))
    assert tries <= len(counts).bit_length() + 1


def test_a_failure_that_does_not_come_again_is_forgotten() -> None:
    poison_search = PoisonSearch(0)
    assert not poison_search.narrow([5, 10, 15], 15)
    assert poison_search.limit == 10
    assert poison_search.continues_after(10)
    assert not poison_search.continues_after(15)
    assert poison_search.limit is None


def test_a_range_that_ends_within_a_frame_has_that_frame_in_it() -> None:
    poison_search = PoisonSearch(0)
    assert not poison_search.narrow([5, 10, 15], 7)
    assert poison_search.ends == (5, 10)


def test_without_a_list_of_frames_any_progress_ends_it() -> None:
    poison_search = PoisonSearch(3, failures=2)
    assert poison_search.continues_after(3)
    assert not poison_search.continues_after(4)
