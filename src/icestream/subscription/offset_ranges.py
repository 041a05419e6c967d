"""Sets of offsets as sorted, disjoint ranges `[first, end)` in an array of two columns."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from icestream.model.errors import InvalidRequestError

Offsets = npt.NDArray[np.int64]
Ranges = npt.NDArray[np.int64]

MAX_OFFSET = int(np.iinfo(np.int64).max)


def no_ranges() -> Ranges:
    return np.empty((0, 2), np.int64)


def as_ranges(given: Iterable[Sequence[int]], *, operation: str) -> Ranges:
    """Return ranges from pairs in any order, which may overlap."""
    try:
        pairs = np.array(list(given), np.int64).reshape(-1, 2)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(
            "these are not ranges of offsets", operation=operation, remedy="give pairs of first offset and end"
        ) from error
    return merged(pairs[pairs[:, 0] < pairs[:, 1]])


def merged(pairs: Ranges) -> Ranges:
    if len(pairs) < 2:  # noqa: PLR2004
        return pairs
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    ends = np.maximum.accumulate(pairs[:, 1])
    begins = np.concatenate(([True], pairs[1:, 0] > ends[:-1]))
    last = np.concatenate((np.flatnonzero(begins)[1:] - 1, [len(pairs) - 1]))
    return np.column_stack((pairs[begins, 0], ends[last]))


def clipped(ranges: Ranges, first: int, end: int) -> Ranges:
    """Return the parts of the ranges within `[first, end)`."""
    low = int(np.searchsorted(ranges[:, 1], first, side="right"))
    high = int(np.searchsorted(ranges[:, 0], end, side="left"))
    return np.clip(ranges[low:high], first, end)


def expanded(ranges: Ranges) -> Offsets:
    """Return every offset in the ranges."""
    if len(ranges) == 1:
        return np.arange(ranges[0, 0], ranges[0, 1])
    lengths = ranges[:, 1] - ranges[:, 0]
    before = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    return np.repeat(ranges[:, 0] - before, lengths) + np.arange(int(lengths.sum()))


def ranges_where(mask: npt.NDArray[np.bool_], first: int) -> Ranges:
    """Return the runs of True in a mask that begins at offset `first`."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.view(np.int8), [0])).astype(np.int8)))
    return edges.reshape(-1, 2).astype(np.int64) + first


def total(ranges: Ranges) -> int:
    """Return how many offsets are in the ranges."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())
