"""The driver's loop: look, wait until something is due, run a pass.

What it guarantees: nothing is kept but what can be lost. A runner can be killed at any step, run twice, or moved; the
tables' ledgers decide what is in and where to go on.

How it learns of messages: the broker answers a question as soon as a topic moves, so the age of a message counts from
its arrival. While messages wait for their time it asks at intervals, whether there are enough of them to go at once.
"""

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import structlog

from icestream.client import Client
from icestream.client.connection import Backoff
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
"""Longest wait for the broker's answer, and so about the longest until a request to stop is noticed."""
_MAX_TRIES = 3
"""How often a drain tries a topic that fails."""

Progress = Callable[[int, int], None]
"""Told how many messages are in tables, and how many shall be."""


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
        """Go on until told to stop; a pass that has begun is finished."""
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
                _log.warning("the broker cannot be asked", error=str(error))
                stopping.wait(backoff.next())

    def _wait(self, stopping: threading.Event) -> None:
        """Return when something is due, after a last look so that the pass takes all that is there."""
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
        """Write everything that is durable now, and return the figures; a topic that keeps failing has its error there.

        What is published meanwhile is not waited for, nor is a topic that is deleted meanwhile and made again.
        """
        self._look(self.topics.refresh_all, stopping)
        ends = {state.backlog.topic: state.backlog.durable_end for state in self.topics}
        streams = {state.backlog.stream_id for state in self.topics}
        reached: dict[TopicName, int] = {}
        total = PassFigures()
        while not stopping.is_set():
            if self._sources.is_away:
                self._look(self.topics.look, stopping)
            reached |= {state.backlog.topic: state.committed or 0 for state in self.topics}
            for made_again in [state for state in self.topics if state.backlog.stream_id not in streams]:
                ends.pop(made_again.backlog.topic, None)
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
        """A broker that does not answer is given its time, where the cloud can stand in for it then."""
        backoff = Backoff()
        while True:
            try:
                look()
            except IcestreamError as error:
                if not (error.retryable and self._sources.is_patient) or stopping.wait(backoff.next()):
                    raise
            else:
                return

    def _done(self, ends: Ends) -> int:
        return sum(min(ends.get(state.backlog.topic, 0), state.committed or 0) for state in self.topics)

    def _is_left(self, state: TopicState, ends: Ends) -> bool:
        """Whether a topic has not reached its end and may still do so."""
        error = state.pause.error
        if error is not None and state.is_tried_again and may_be_the_messages(error):
            return True
        tries = _MAX_TRIES if state.pause.error is None or state.pause.error.retryable else 1
        end = min(ends.get(state.backlog.topic, 0), state.backlog.durable_end)
        behind = (state.committed or 0) < end
        return behind and state.backlog.error is None and state.pause.failures < tries

    def _note_unreadable(self, total: PassFigures) -> None:
        for state in self.topics:
            if state.backlog.error is not None:
                figures = total.of(state.backlog.topic)
                figures.failures += 1
                figures.error = state.backlog.error

    def _note_unreached(self, ends: Ends, reached: Mapping[TopicName, int], total: PassFigures) -> None:
        """The broker went away meanwhile, and the cloud does not have all that it told of."""
        for topic, end in ends.items():
            figures = total.of(topic) if reached.get(topic, 0) < end else None
            if figures is not None and figures.error is None:
                figures.failures += 1
                figures.error = f"the broker is away, and the cloud does not have its messages up to {end}"

    def close(self) -> None:
        self.passes.close()
        self._sources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
