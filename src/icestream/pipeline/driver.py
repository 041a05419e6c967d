"""The driver's loop: ask what waits, sleep until something is due, run a pass.

The driver keeps only what it can lose. It can be killed at any step, run twice, or moved; the tables' ledgers decide
what is written and where the next pass begins.

The broker responds to a backlog call as soon as a topic moves, so a message's age counts from its arrival. While
messages wait for their flush interval, the driver polls whether there are enough of them for an earlier pass.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

import structlog

from icestream.client import Backoff, Client
from icestream.config import Settings
from icestream.model.errors import IcestreamError
from icestream.model.names import TopicName
from icestream.pipeline.one_pass import Ends, JobRunner, PassRunner
from icestream.pipeline.quarantine.poison_search import may_be_the_messages
from icestream.pipeline.report import PassFigures
from icestream.pipeline.sources import MessageSources
from icestream.pipeline.state import TopicState, TopicStates
from icestream.table import Tables

_log = structlog.get_logger(__name__)
_IDLE_SECONDS = 0.5
"""Longest wait for the broker's response, and so about the longest until a stop is noticed."""
_MAX_TRIES = 3
"""How many times a drain tries a topic that fails."""

Progress = Callable[[int, int], None]
"""Called with the number of messages in tables, and the number there will be."""


class Runner:
    def __init__(
        self,
        settings: Settings,
        client: Client,
        tables: Tables,
        spark: JobRunner,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._poll_seconds = settings.pipeline.poll_interval_ms / 1000
        self._clock = clock
        self._sources = MessageSources(settings, client, clock)
        self.topics = TopicStates(settings, self._sources, clock)
        self.passes = PassRunner(settings, self._sources, tables, spark, self.topics, clock)

    def run(self, stopping: threading.Event) -> None:
        """Run passes until `stopping` is set. A pass that has begun is finished."""
        backoff = Backoff()
        while not stopping.is_set():
            try:
                self._wait(stopping)
                if not stopping.is_set():
                    self.passes.run()
                backoff.reset()
            except IcestreamError as error:
                if not error.retryable:
                    raise
                pause = backoff.next()
                _log.warning("broker_backlog_failed", reason=str(error), retry_in_ms=round(pause * 1000))
                stopping.wait(pause)

    def _wait(self, stopping: threading.Event) -> None:
        """Return when something is due, with a fresh backlog, so that the pass takes all there is."""
        while not stopping.is_set():
            due = self.topics.next_due(self.passes.seconds)
            left = _IDLE_SECONDS if due is None else due - self._clock()
            if left <= 0:
                self.topics.look()
                return
            if due is None:
                self.topics.look(wait_seconds=left)
            else:
                stopping.wait(min(left, self._poll_seconds))
                self.topics.look()

    def drain(self, stopping: threading.Event, progress: Progress = lambda _done, _all: None) -> PassFigures:
        """Write everything that is durable now. Return the figures, with the error of each topic that keeps failing.

        Messages that are published meanwhile may be left, and so is a topic that is deleted and created again.
        """
        self._look(self.topics.refresh_all, stopping)
        ends = {state.backlog.name: state.backlog.durable_end for state in self.topics}
        streams = {state.backlog.stream_id for state in self.topics}
        reached: dict[TopicName, int] = {}
        total = PassFigures()
        while not stopping.is_set():
            if self._sources.is_away:
                self._look(self.topics.look, stopping)
            reached |= {state.backlog.name: state.committed or 0 for state in self.topics}
            for made_again in [state for state in self.topics if state.backlog.stream_id not in streams]:
                ends.pop(made_again.backlog.name, None)
            progress(self._done(ends), sum(ends.values()))
            resting = [state.pause.until for state in self.topics if self._is_left(state, ends)]
            if not resting:
                break
            if stopping.wait(max(0.0, min(resting) - self._clock())):
                break
            total.add(self.passes.run(ends))
        self._note_unreadable(total)
        if self._sources.is_on_cloud and not stopping.is_set():
            self._note_unreached(ends, reached, total)
        return total

    def _look(self, look: Callable[[], object], stopping: threading.Event) -> None:
        """Ask for the backlog. Retry while the cloud may still replace an unreachable broker."""
        backoff = Backoff()
        while True:
            try:
                look()
            except IcestreamError as error:
                if not (error.retryable and self._sources.can_fall_back_to_cloud) or stopping.wait(backoff.next()):
                    raise
            else:
                return

    def _done(self, ends: Ends) -> int:
        return sum(min(ends.get(state.backlog.name, 0), state.committed or 0) for state in self.topics)

    def _is_left(self, state: TopicState, ends: Ends) -> bool:
        """Return whether a topic has not reached its end and still may."""
        error = state.pause.error
        if error is not None and state.is_tried_again and may_be_the_messages(error):
            return True
        tries = _MAX_TRIES if state.pause.error is None or state.pause.error.retryable else 1
        end = min(ends.get(state.backlog.name, 0), state.backlog.durable_end)
        behind = (state.committed or 0) < end
        return behind and state.backlog.error is None and state.pause.failures < tries

    def _note_unreadable(self, total: PassFigures) -> None:
        for state in self.topics:
            if state.backlog.error is not None:
                figures = total.of(state.backlog.name)
                figures.failures += 1
                figures.error = state.backlog.error

    def _note_unreached(self, ends: Ends, reached: Mapping[TopicName, int], total: PassFigures) -> None:
        """Note topics whose last messages only the broker has, which became unreachable during the drain."""
        for topic, end in ends.items():
            figures = total.of(topic) if reached.get(topic, 0) < end else None
            if figures is not None and figures.error is None:
                figures.failures += 1
                figures.error = f"the broker is unreachable, and the cloud does not have the messages up to {end}"

    def close(self) -> None:
        self.passes.close()
        self._sources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
