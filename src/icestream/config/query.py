"""What SQL over topics may use of the machine."""

from typing import Annotated

from pydantic import Field

from icestream.config.fields import GIB, KIB, MIB, Section, Unit


class QuerySettings(Section):
    """Limits of SQL queries. Used by the query engine, which runs in the broker."""

    max_memory_mb: int = Field(
        default=512, ge=16, le=1_048_576, description="Most memory of one query; one that needs more fails."
    )
    timeout_ms: int = Field(
        default=60_000,
        ge=1,
        le=86_400_000,
        description="A query that takes longer, the delivery of its result included, is ended.",
    )
    max_queries: Annotated[int, Unit("queries")] = Field(
        default=4, ge=1, le=1_000, description="Most queries at once; one more is refused, and may be tried again."
    )
    max_result_rows: Annotated[int, Unit("rows")] = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Most rows of an answer over HTTP; over Flight there is no limit.",
    )
    max_result_bytes: int = Field(
        default=16 * MIB,
        ge=KIB,
        le=GIB,
        description="About the most bytes of Arrow that become the rows of an answer over HTTP.",
    )
