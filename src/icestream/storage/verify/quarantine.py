"""Frames in quarantine: their files are checked, and the log's and the cloud's copies of them are not opened."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from icestream.model.errors import DamagedError
from icestream.model.frames import Frame
from icestream.model.lost_ranges import LostRanges
from icestream.model.messages import Encoding, slice_from
from icestream.storage.verify.findings import Finding, Verification
from icestream.table import TopicTable
from icestream.table.quarantine import read_about, read_frame


def check_quarantine(table: TopicTable, report: Verification) -> None:
    """Note what is in quarantine; a file that is missing or not what was written is a finding."""
    for entry in table.quarantined:
        report.quarantined.append(entry)
        try:
            read_frame(table, entry)
            read_about(table, entry)
        except DamagedError as error:
            text = f"in quarantine: {error.message}"
            report.add(Finding("damaged", text, entry.first_offset, entry.end_offset - 1, error.place))


def not_aside(frames: Iterable[Frame], aside: LostRanges) -> Iterator[Frame]:
    """The frames, with those that are wholly in quarantine as if a repair had given them up."""
    for frame in frames:
        is_aside = bool(aside) and next(aside.others(frame.base_offset, frame.end_offset), None) is None
        yield frame._replace(encoding=Encoding.LOST, body=b"") if is_aside else frame


def rows_not_aside(batch: pa.RecordBatch, aside: LostRanges) -> pa.RecordBatch:
    """Of a batch, what is not in quarantine: a part of its last frame may be, never one in its middle."""
    if not aside or not batch.num_rows:
        return batch
    first, end = batch.column(0)[0].as_py(), batch.column(0)[-1].as_py() + 1
    kept = [slice_from(batch, *part) for part in aside.others(first, end)]
    return pa.concat_batches(kept) if kept else batch.slice(0, 0)
