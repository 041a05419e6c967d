"""What all readers of cloud objects share: threads that read ahead, a bound on the bytes read ahead, indexes."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from icestream.cloud.indexes import Indexes
from icestream.config import ReaderSettings


class ReadPool:
    """Thread-safe. The threads are made when they are first needed; a reader that does not read occupies none."""

    def __init__(self, settings: ReaderSettings | None = None) -> None:
        settings = settings or ReaderSettings()
        self.reader_bytes = settings.cloud_prefetch_bytes
        """Most bytes that one reader has read ahead."""
        self.indexes = Indexes()
        self._free_bytes = settings.cloud_prefetch_max_bytes
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(settings.cloud_threads, thread_name_prefix="cloud-read")

    @property
    def free_bytes(self) -> int:
        """What may still be read ahead, by all readers together."""
        return self._free_bytes

    def start(self, read: Callable[[], bytes], nbytes: int) -> "Future[bytes] | None":
        """Begin to read in the background; None where all readers together have read too much ahead.

        The bytes count until they are given back.
        """
        with self._lock:
            if nbytes > self._free_bytes:
                return None
            self._free_bytes -= nbytes
        try:
            return self._threads.submit(read)
        except RuntimeError:  # closed: who still reads does so in its own thread
            self.give_back(nbytes)
            return None

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self._free_bytes += nbytes

    def close(self) -> None:
        """End the threads, as soon as they have read what they are reading."""
        self._threads.shutdown(wait=False, cancel_futures=True)
