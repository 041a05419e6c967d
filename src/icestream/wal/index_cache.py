"""The indexes of sealed segments, for readers."""

import contextlib
import threading
from collections import OrderedDict
from pathlib import Path

from icestream.model.sparse_index import SparseIndex
from icestream.wal.files import File, Files
from icestream.wal.index_file import load_index, save_index
from icestream.wal.recovery import SealedSegment
from icestream.wal.segment import HEADER_BYTES, INDEX_SUFFIX, scan_sound, segment_path


class IndexCache:
    """The indexes of sealed segments, loaded when needed and made anew when missing or damaged; a few are kept."""

    def __init__(self, files: Files, interval_bytes: int, max_indexes: int = 16) -> None:
        self._files = files
        self._interval_bytes = interval_bytes
        self._max_indexes = max_indexes
        self._lock = threading.Lock()
        self._indexes: OrderedDict[Path, SparseIndex] = OrderedDict()

    def get(self, segment: SealedSegment, file: File) -> SparseIndex:
        with self._lock:
            index = self._indexes.get(segment.path)
            if index is None:
                index = self._indexes[segment.path] = self._load(segment, file)
            self._indexes.move_to_end(segment.path)
            if len(self._indexes) > self._max_indexes:
                self._indexes.popitem(last=False)
            return index

    def _load(self, segment: SealedSegment, file: File) -> SparseIndex:
        path = segment_path(segment.path.parent, segment.header.base_offset, INDEX_SUFFIX)
        index = load_index(self._files, path)
        if index is None:
            index = SparseIndex(self._interval_bytes)
            for position, frame in scan_sound(
                file, segment.path, HEADER_BYTES, segment.footer.position, segment.header.seed
            ):
                index.add(frame.base_offset, position, frame.publish_time_us)
            with contextlib.suppress(OSError):  # a reader needs the index, not the file
                save_index(index, self._files, path)
        return index
