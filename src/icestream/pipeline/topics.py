"""The topics a pipeline looks after: what the broker or the cloud says of them, and when each is due."""

from collections.abc import Callable, Iterator

from icestream.config import Settings
from icestream.model.names import TopicName
from icestream.pipeline.planner import Limits, due_at
from icestream.pipeline.sources import Sources
from icestream.pipeline.state import Rest, TopicState

LONG_AGO = 0.0
_WHOLE_LOOK_SECONDS = 60.0
"""How often all topics are asked for, not only those that moved, so that deleted ones are forgotten."""


class Topics:
    def __init__(self, settings: Settings, sources: Sources, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._sources = sources
        self._pattern = settings.pipeline.topics
        self._clock = clock
        self._limits = Limits.of(settings)
        self._mark: str | None = None
        self._looked_at_all = -_WHOLE_LOOK_SECONDS
        self._listed: set[TopicName] = set()
        self._known_once = False
        self._states: dict[TopicName, TopicState] = {}

    def __getitem__(self, topic: TopicName) -> TopicState:
        return self._states[topic]

    def __iter__(self) -> Iterator[TopicState]:
        return iter(list(self._states.values()))

    def look_at_all(self) -> None:
        """Learn of everything that is there now."""
        self._mark, self._listed = None, set()
        while not self.look():
            pass

    def look(self, *, wait_seconds: float = 0.0, seen: float | None = None) -> bool:
        """Ask the broker what has moved, and wait for it if need be; False if it has more to tell.

        Messages of an answer count as seen when it comes, or at `seen` if the caller was busy since then. What the
        first answers tell of has waited for nobody knows how long, and is due at once.
        """
        if self._clock() - self._looked_at_all > _WHOLE_LOOK_SECONDS:
            self._mark, self._listed = None, set()
        whole = self._mark is None
        answer = self._sources.backlog(self._pattern, mark=self._mark, wait_ms=int(wait_seconds * 1000))
        now = self._clock()
        since = LONG_AGO if not self._known_once else now if seen is None else seen
        for backlog in answer.topics:
            state = self._states.get(backlog.topic)
            if state is None or state.backlog.stream_id != backlog.stream_id:
                self._states[backlog.topic] = TopicState(backlog, self._rest(), since)
            else:
                state.update(backlog, since)
        self._listed.update(backlog.topic for backlog in answer.topics)
        if whole:
            self._looked_at_all = now
        if answer.complete:
            self._mark, self._known_once = answer.mark, True
        if whole and answer.complete:
            for gone in self._states.keys() - self._listed:
                del self._states[gone]
        return answer.complete

    def forget(self, topic: TopicName) -> None:
        """The topic is not what it was: ask about all of them again."""
        self._states.pop(topic, None)
        self._mark, self._listed = None, set()

    def release_tables(self, keep: int) -> None:
        """Let go of the loaded tables beyond `keep`, those first that were not used for the longest time."""
        loaded = sorted((state for state in self if state.is_open), key=lambda state: state.used_at)
        for state in loaded[: max(0, len(loaded) - keep)]:
            state.release()

    def due(self, state: TopicState, pass_seconds: float) -> float | None:
        """When something is to be done for a topic; None while nothing is."""
        if state.untold:
            return LONG_AGO
        if state.backlog.error is not None:
            return None
        if state.is_pending or (state.waits and (state.committed is None or state.is_cut_off)):
            return state.rest.until
        times = [due_at(waiting, self._limits, pass_seconds=pass_seconds) for waiting in state.waitings()]
        return max(state.rest.until, min(times)) if times else None

    def next_due(self, pass_seconds: float) -> float | None:
        times = (self.due(state, pass_seconds) for state in self._states.values())
        return min((time for time in times if time is not None), default=None)

    def _rest(self) -> Rest:
        pipeline = self._settings.pipeline
        return Rest(pipeline.retry_interval_ms / 1000, pipeline.max_retry_interval_ms / 1000)
