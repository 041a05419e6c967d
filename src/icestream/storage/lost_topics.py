"""Topics that lost their log, or all their records, and are still in the object store."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from time import monotonic

import structlog

from icestream.cloud import topic_prefix
from icestream.metadata import MetadataStore, keys
from icestream.model.clock import Clock
from icestream.model.errors import DeadlineError, IcestreamError, InvalidRequestError, LogLostError, UnavailableError
from icestream.model.names import TopicName
from icestream.storage.cloud.discovery import TopicFile, find_streams
from icestream.storage.cloud.recovery import MakeLog, RecoveryReport, TopicRecovery
from icestream.storage.cloud.topic_cloud import Cloud
from icestream.storage.logs import Logs
from icestream.storage.record import TopicRecord
from icestream.storage.topic import ReadContext
from icestream.wal import StreamInfo

_MAX_UNDER_WAY = 8


class DeadlineCalls:
    """Calls with a deadline, to a server that may not respond.

    Each call has its own thread. A call that passes its deadline runs on there; the number of threads is bounded.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._free = threading.Semaphore(_MAX_UNDER_WAY)

    def run(self, call: Callable[[], bool]) -> bool:
        """Return or raise what the call does; raise `DeadlineError` if that takes too long."""
        deadline = monotonic() + self._seconds
        if not self._free.acquire(timeout=self._seconds):
            raise self._late()
        outcome: Future[bool] = Future()

        def work() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:  # noqa: BLE001 - the caller that waits gets it
                outcome.set_exception(error)
            finally:
                self._free.release()

        threading.Thread(target=work, name="deadline-call", daemon=True).start()
        try:
            return outcome.result(max(0.0, deadline - monotonic()))
        except FutureTimeoutError:
            raise self._late() from None

    def _late(self) -> DeadlineError:
        return DeadlineError(f"no response within {self._seconds:g} seconds", operation="look")


_RECOVER = "recover topic"
_LOOK_SECONDS = 2.0
"""How long the creation of a topic waits for the object store, whose own retries may take a minute."""
_log = structlog.get_logger(__name__)


class LostTopics:
    def __init__(
        self, logs: Logs, metadata: MetadataStore, cloud: Cloud | None, reading: ReadContext, clock: Clock
    ) -> None:
        self._logs = logs
        self._metadata = metadata
        self._cloud = cloud
        self._reading = reading
        self._clock = clock
        self._looks = DeadlineCalls(_LOOK_SECONDS)

    def in_cloud(self) -> set[TopicName]:
        """Return the topics of which the object store has anything."""
        return {stream.topic for stream in find_streams(self._cloud.store)} if self._cloud is not None else set()

    def unknown_topic_in_store_error(self, name: TopicName) -> IcestreamError | None:
        """Return the error if the object store has a topic of this name that lost its records.

        A new topic would hide the lost one, and not fit its table. A store that does not respond soon is ignored.
        """
        if self._cloud is None:
            return None
        store = self._cloud.store
        try:
            is_there = self._looks.run(lambda: next(iter(store.list(topic_prefix(name))), None) is not None)
        except (UnavailableError, DeadlineError) as error:
            _log.warning("cloud_topic_lookup_failed", topic=str(name), error=str(error))
            return None
        if not is_there:
            return None
        return LogLostError(
            f"{store.name} has messages of a topic of this name that this broker does not know",
            operation="create topic",
            place=str(name),
            remedy=f"recover it with `icestream topic recover {name}`; delete it afterwards if it is not wanted",
        )

    def record_of(self, stream: StreamInfo) -> TopicRecord:
        """Return the record for a log without one, with the attributes that `topic.json` in the object store has."""
        noted = None
        if self._cloud is not None:
            try:
                noted = TopicFile.read(self._cloud.store, TopicName.parse(stream.topic), str(stream.stream_id))
            except UnavailableError as error:
                _log.warning(
                    "adopted_topic_settings_unknown",
                    topic=stream.topic,
                    error=str(error),
                )
        return TopicRecord.from_stream(stream, self._clock(), noted.record if noted is not None else None)

    def check_uploaded(self, record: TopicRecord) -> None:
        """Raise if a log is to be created that existed before: something of it was uploaded."""
        if self._cloud is None or self._logs.is_there(record.name):
            return
        head = self._cloud.of(record.name, record.stream_id).registry.head()
        if head is not None and head.uploaded_end:
            raise self._logs.lost_log_error(record)

    def recover(self, name: TopicName, make_log: MakeLog) -> RecoveryReport:
        """Recover a topic that has no log here; see `icestream.storage.cloud.recovery`."""
        if self._logs.is_there(name):
            raise nothing_to_recover(name)
        if self._logs.has_segments(name):
            raise InvalidRequestError(
                "segments of the topic's log are there",
                operation=_RECOVER,
                place=str(self._logs.path(name)),
                remedy="repair them with `icestream wal repair`, or move the directory away first",
            )
        if self._cloud is None:
            raise InvalidRequestError(
                "without an object store there is nothing to recover a topic from",
                operation=_RECOVER,
                place=str(name),
                remedy="set cloud.backend and cloud.root to the store that the topic was uploaded to, or delete the "
                "topic with --keep-table and create it again under another name",
            )
        entry = self._metadata.get(keys.topic(name))
        if entry is not None:
            self._logs.check_holder_stopped(TopicRecord.from_bytes(entry.value))
        recovery = TopicRecovery(
            self._cloud.store,
            self._metadata,
            name,
            clock=self._clock,
            max_producers=self._logs.context.options.max_producers,
            committed=self._committed_offset,
            make_log=make_log,
        )
        report = recovery.run()
        _log.warning("topic_recovered", **report.to_json())
        return report

    def _committed_offset(self, record: TopicRecord) -> int | None:
        """Return the committed offset of the table that reaches farthest; None if there is none."""
        tables = (self._reading.find_table(name) for name in self._reading.format.all_tables(record.name))
        ledgers = (table.ledger for table in tables if table is not None)
        return max((one.committed_offset for one in ledgers if one.stream_id == record.stream_id), default=None)


def nothing_to_recover(name: TopicName) -> InvalidRequestError:
    return InvalidRequestError(
        "there is nothing to recover: the topic's log is there", operation=_RECOVER, place=str(name)
    )
