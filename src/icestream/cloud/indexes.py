"""The sparse indexes of objects, as readers need them: from the description, or from the object's own trailer."""

import threading
from collections import OrderedDict

import structlog

from icestream.cloud.descriptor import ObjectDescriptor, damaged_object
from icestream.cloud.store import ObjectStore
from icestream.cloud.trailer import check_trailer
from icestream.model.errors import DamagedError, ObjectNotFoundError
from icestream.model.sparse_index import SparseIndex

_MAX_BYTES = 16 << 20
_ENTRY_BYTES = 24
_FIXED_BYTES = 256
_log = structlog.get_logger(__name__)


class Indexes:
    """Thread-safe. Those that were read from objects are kept, so many bytes of them."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._free_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, SparseIndex] = OrderedDict()

    def get(self, store: ObjectStore, descriptor: ObjectDescriptor) -> SparseIndex:
        """The object's index. One that is damaged is passed over: without an index the frames tell the same."""
        inline = descriptor.sparse_index()
        if inline is not None:
            return inline
        with self._lock:
            index = self._kept.get(descriptor.key)
            if index is not None:
                self._kept.move_to_end(descriptor.key)
                return index
        try:
            data = store.read(descriptor.key, descriptor.data_bytes, descriptor.size - descriptor.data_bytes)
            index = check_trailer(data, descriptor).index
        except ObjectNotFoundError as error:
            raise damaged_object(descriptor, "the object is gone") from error
        except DamagedError as error:
            _log.warning("a cloud object's index cannot be used", object=descriptor.key, error=str(error))
            index = SparseIndex(1)
        self._keep(descriptor.key, index)
        return index

    def _keep(self, key: str, index: SparseIndex) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = index
            self._free_bytes -= _nbytes(index)
            while self._free_bytes < 0:
                self._free_bytes += _nbytes(self._kept.popitem(last=False)[1])


def _nbytes(index: SparseIndex) -> int:
    return _FIXED_BYTES + _ENTRY_BYTES * len(index)
