"""Something that looks on in a thread of its own while a block runs."""

import threading
from abc import ABC, abstractmethod
from typing import Self


class Beside(ABC):
    def __init__(self, name: str) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    @abstractmethod
    def _watch(self) -> None:
        """Look on until `_ended` is set."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
