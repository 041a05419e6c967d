"""Background threads that report on stderr why a command makes no progress."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import click

from icestream.cli.output import duration_text
from icestream.client import Client
from icestream.model.clock import now_us
from icestream.model.errors import IcestreamError

_COMMIT_PATIENCE_SECONDS = 10.0
_PIPELINE_SILENT_SECONDS = 60.0


class BackgroundWatch(ABC):
    """Runs a background thread while a `with` block is active."""

    def __init__(self, name: str) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    @abstractmethod
    def _watch(self) -> None:
        """Watch until `_ended` is set."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


class CommitWatch(BackgroundWatch):
    """Says once why messages do not reach the table, when none was committed for some seconds."""

    def __init__(
        self, client: Client, topic: str, confirmed: Callable[[], int], *, patience_s: float = _COMMIT_PATIENCE_SECONDS
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
            if now == before and self._report():
                return
            before = now

    def _report(self) -> bool:
        try:
            reason = commit_trouble(self._client.stats(self._topic))
        except IcestreamError:  # the producer gets the same error, and reports it if it gives up
            return False
        if reason is None:
            return False
        click.echo(f"waiting for the table of {self._topic}: {reason}", err=True)
        return True


def commit_trouble(stats: dict[str, Any]) -> str | None:
    """Return why nothing is committed, from the broker's statistics; None while the pipeline is at work."""
    pipeline = stats["pipeline"]
    failing = [topic["error"] for topic in pipeline["topics"].values() if topic["error"]]
    if failing:
        return f"the pipeline cannot write it: {failing[0]}"
    start = "start one with `icestream pipeline`"
    if "reported_us" not in pipeline:  # the token's namespace sees its own topics only
        return None
    reported_us = pipeline["reported_us"]
    if reported_us is None:
        return f"no pipeline has reported to this broker yet; unless its own is just starting, {start}"
    silent_s = (now_us() - reported_us) / 1e6
    if silent_s > _PIPELINE_SILENT_SECONDS:
        return f"the pipeline last reported {duration_text(silent_s)} ago; {start} if it has ended"
    return None
