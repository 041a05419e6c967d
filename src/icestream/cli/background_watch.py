"""Something that looks on in a thread of its own while a block runs."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import click

from icestream.cli.output import duration_text
from icestream.client import Client
from icestream.model.clock import now_us
from icestream.model.errors import IcestreamError


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


# --------------------
# Says on stderr why messages that are to reach the table do not, when that takes long: `produce --ack table`.


_PATIENCE_S = 10.0
_SILENT_S = 60.0


class CommitWatch(Beside):
    """Looks at the broker's figures when nothing was confirmed for some seconds, and says once what is the matter."""

    def __init__(
        self, client: Client, topic: str, confirmed: Callable[[], int], *, patience_s: float = _PATIENCE_S
    ) -> None:
        super().__init__("commit-watch")
        self._client = client
        self._topic = topic
        self._confirmed = confirmed
        self._patience_s = patience_s

    def _watch(self) -> None:
        before = self._confirmed()
        while not self._ended.wait(self._patience_s):
            now = self._confirmed()
            if now == before and self._tell():
                return
            before = now

    def _tell(self) -> bool:
        try:
            reason = commit_trouble(self._client.stats(self._topic))
        except IcestreamError:  # the producer hears of it too, and says so if it gives up
            return False
        if reason is None:
            return False
        click.echo(f"waiting for the table of {self._topic}: {reason}", err=True)
        return True


def commit_trouble(stats: dict[str, Any]) -> str | None:
    """Why nothing is committed, as far as the broker knows; None where the pipeline is just at work."""
    pipeline = stats["pipeline"]
    failing = [topic["error"] for topic in pipeline["topics"].values() if topic["error"]]
    if failing:
        return f"the pipeline cannot write it: {failing[0]}"
    start = "start one with `icestream pipeline`"
    if "reported_us" not in pipeline:  # a tenant is told of its own topics alone
        return None
    reported_us = pipeline["reported_us"]
    if reported_us is None:
        return f"no pipeline has reported to this broker yet; unless its own is just starting, {start}"
    silent_s = (now_us() - reported_us) / 1e6
    if silent_s > _SILENT_S:
        return f"the pipeline last reported {duration_text(silent_s)} ago; {start} if it has ended"
    return None
