"""Which log records are asked for: as a query over what is there, and as a filter of what comes."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from icestream.cli.severities import at_least
from icestream.cli.sql_literals import filter_bytes, query_bytes, query_time, table_name, text_literal
from icestream.model.names import TopicName

COLUMNS = (
    "_offset",
    "time",
    "time_unix_nano",
    "observed_time_unix_nano",
    "severity_number",
    "severity_text",
    "service_name",
    "body",
    "event_name",
    "trace_id",
    "span_id",
    "attributes",
)


@dataclass(frozen=True)
class Wanted:
    """None stands for no condition. Times bound the history alone: whatever comes is news."""

    service: str | None = None
    severity: str | None = None
    trace_id: bytes | None = None
    pattern: str | None = None
    """An RE2 expression of which the body must have a match."""
    since_us: int | None = None
    until_us: int | None = None

    def history(self, topic: TopicName, *, end: int, limit: int) -> str:
        """A query for the newest `limit` records below the offset `end`, oldest first."""
        conditions = [f"_offset < {end}", *self._same_in_both()]
        if self.since_us is not None:
            conditions.append(f'"time" >= {query_time(self.since_us)}')
        if self.until_us is not None:
            conditions.append(f'"time" < {query_time(self.until_us)}')
        if self.trace_id is not None:
            conditions.append(f"trace_id = {query_bytes(self.trace_id)}")
        if self.pattern is not None:
            conditions.append(f"regexp_matches(body, {text_literal(self.pattern)})")
        columns = ", ".join(f'"{name}"' for name in COLUMNS)
        newest = (
            f"SELECT {columns} FROM {table_name(topic)} WHERE {' AND '.join(conditions)} "  # noqa: S608 - literals
            f'ORDER BY "time" DESC NULLS LAST, _offset DESC LIMIT {limit}'
        )
        return f'SELECT * FROM ({newest}) ORDER BY "time" NULLS FIRST, _offset'  # noqa: S608 - the query above

    def filter(self) -> str | None:
        """What a reader's filter can say of it; `matching` does the rest."""
        conditions = list(self._same_in_both())
        if self.trace_id is not None:
            conditions.append(f"trace_id = {filter_bytes(self.trace_id)}")
        return " AND ".join(conditions) or None

    def matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records that the pattern finds something in."""
        if self.pattern is None:
            return batch
        return batch.filter(pc.match_substring_regex(batch.column("body"), self.pattern))

    def _same_in_both(self) -> list[str]:
        found = []
        if self.service is not None:
            found.append(f"service_name = {text_literal(self.service)}")
        if self.severity is not None:
            found.append(at_least(self.severity))
        return found


def pattern_problem(pattern: str) -> str | None:
    """What is wrong with an expression; the broker's engine and Arrow's are the same, RE2."""
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        return str(error).partition("\n")[0]
    return None
