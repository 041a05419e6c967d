"""What the driver remembers of a topic between passes. All of it can be lost: the truth is in the table."""

from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from icestream.client.pipeline import TopicBacklog
from icestream.model.errors import DamagedError, IcestreamError
from icestream.model.messages import STREAM_SCHEMA, stream_schema
from icestream.model.schema_text import decode_schema
from icestream.pipeline.cloud_streams import CloudBacklog
from icestream.pipeline.commit import Pending
from icestream.pipeline.plan import Waiting
from icestream.table import TableSpec, TopicTable


@dataclass
class Rest:
    """A topic that failed is left alone for a while, longer each time."""

    first_seconds: float
    limit_seconds: float
    failures: int = 0
    until: float = 0.0
    error: IcestreamError | None = None

    def fail(self, error: IcestreamError, now: float) -> None:
        """An error that trying again cannot heal waits the longest time at once: somebody has to act first."""
        self.failures += 1
        growing = self.first_seconds * (1 << min(self.failures - 1, 30))
        self.until = now + (min(growing, self.limit_seconds) if error.retryable else self.limit_seconds)
        self.error = error

    def end(self) -> None:
        self.failures, self.until, self.error = 0, 0.0, None


@dataclass
class TopicState:
    backlog: TopicBacklog
    rest: Rest
    since: float
    """When messages that wait were first seen; meaningless while none wait."""
    table: TopicTable | None = None
    committed: int | None = None
    """Of the table's ledger as last seen; none before the table was opened."""
    older: CloudBacklog | None = None
    """What lies in the cloud before the log begins, where the table does not have all of it."""
    pending: Pending | None = None
    """Written, but not committed because the catalog was away."""
    used_at: float = 0.0
    """When messages of it were last handed to a job."""
    crashed: bool = False
    """The last try took a worker with it: the topic gets a job of its own."""
    untold: bool = False
    """The log cannot be read, or can be read again, and the figures do not say so yet."""

    def __post_init__(self) -> None:
        self.untold = self.backlog.error is not None

    def update(self, backlog: TopicBacklog, seen: float) -> None:
        """Take in what the broker says; `seen` is the earliest time at which new messages can have come."""
        if backlog.durable_end > self.backlog.durable_end and not self.waits:
            self.since = seen
        if backlog.schema != self.backlog.schema:
            self.table = None
            self.rest.end()
        if backlog.error is not None or self.backlog.error is not None:
            self.untold = True
        self.backlog = backlog

    @property
    def waits(self) -> bool:
        """Whether messages wait, as far as is known without having seen the table."""
        return self.backlog.durable_end > (self.committed or 0)

    @property
    def spec(self) -> TableSpec:
        backlog = self.backlog
        return TableSpec(
            topic=backlog.topic,
            stream_id=backlog.stream_id,
            epoch=backlog.epoch,
            schema=_schema(backlog.schema),
            partition_by=backlog.partition_by,
            sort_by=backlog.sort_by,
        )

    def take(self, table: TopicTable) -> None:
        """Use a newly loaded state of the table; raises when log and table do not fit together."""
        self.table, self.committed = table, table.ledger.committed_offset
        backlog = self.backlog
        if self.committed > backlog.durable_end and not isinstance(backlog, CloudBacklog):
            raise DamagedError(
                f"the table holds messages up to {self.committed}, the log ends at {backlog.durable_end}: "
                "the log is not the one that the table was written from",
                operation="plan",
                place=str(backlog.topic),
                remedy="restore the log, or delete the topic",
            )

    @property
    def is_cut_off(self) -> bool:
        """Whether the table ends before the log begins, and what lies between is yet to be found in the cloud."""
        if self.committed is None or self.committed >= self.backlog.start_offset:
            return False
        return self.older is None or not self.older.start_offset <= self.committed < self.older.durable_end

    @property
    def at_hand(self) -> TopicBacklog:
        """What holds the next messages: the log, or, before it begins, the cloud."""
        before_log = self.committed is not None and self.committed < self.backlog.start_offset
        return self.older if before_log and self.older is not None else self.backlog

    def waiting(self, end: int | None = None) -> Waiting | None:
        """What waits, up to `end`, in one place; none before the table was opened."""
        if self.committed is None or self.is_cut_off:
            return None
        backlog = self.at_hand
        end = backlog.durable_end if end is None else min(end, backlog.durable_end)
        if end <= self.committed:
            return None
        held = backlog.durable_end - backlog.start_offset
        share = (end - self.committed) / held if held else 1.0
        return Waiting(
            topic=backlog.topic,
            start=self.committed,
            end=end,
            nbytes=max(1, round(backlog.nbytes * min(1.0, share))),
            since=self.since,
            served=self.used_at,
            awaited=self.committed < backlog.awaited_end <= end,
            suspect=self.rest.failures > 0,
        )


@lru_cache(maxsize=256)
def _schema(text: str | None) -> pa.Schema:
    return STREAM_SCHEMA if text is None else stream_schema(decode_schema(text))
