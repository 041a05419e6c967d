"""Table maintenance: what is done to tables beside writing them, when, and with how much."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from icestream.config.fields import GIB, KIB, MIB, TIB, DefaultText, Section, Unit, refuse
from icestream.config.spark_master import MASTER_PATTERN, MASTER_TEXT

SAFE_ORPHAN_AGE_HOURS = 24
"""A file that is not in the table yet may be on its way into it; Iceberg, too, refuses a shorter time."""


class MaintenanceSettings(Section):
    """How tables are kept fast and small. Used by `icestream maintain`, and by the broker that runs it."""

    enabled: bool = Field(default=True, description="Whether `icestream serve` runs maintenance now and then.")
    interval_minutes: int = Field(
        default=60, ge=1, le=43_200, description="Time between the end of one run and the next."
    )
    orphan_interval_hours: int = Field(
        default=24,
        ge=1,
        le=8_760,
        description="Orphan files are looked for in the first run, and then after this time: it lists whole tables.",
    )
    master: Annotated[str | None, MASTER_TEXT, DefaultText("`pipeline.master`")] = Field(
        default=None, pattern=MASTER_PATTERN, description="The Spark master for maintenance."
    )
    driver_memory_mb: int = Field(
        default=1_024, ge=256, le=65_536, description="Heap of the driver's JVM; on `local[N]` rows pass through it."
    )
    target_file_bytes: Annotated[int | None, DefaultText("the table's `write.target-file-size-bytes`")] = Field(
        default=None, ge=64 * KIB, le=16 * GIB, description="About the size of compacted data files."
    )
    min_input_files: Annotated[int, Unit("files")] = Field(
        default=5,
        ge=2,
        le=100_000,
        description="Neighbouring small files are compacted when there are so many, or when they fill a target file.",
    )
    max_rewrite_bytes: int = Field(
        default=2 * GIB,
        ge=MIB,
        le=TIB,
        description="Most bytes of data files that one commit of a compaction replaces.",
    )
    snapshot_age_hours: int = Field(
        default=24, ge=1, le=87_600, description="Older snapshots are expired, unless a branch or tag names them."
    )
    min_snapshots: Annotated[int, Unit("snapshots")] = Field(
        default=10, ge=1, le=100_000, description="So many of the newest snapshots stay, whatever their age."
    )
    orphan_age_hours: int = Field(
        default=72,
        ge=SAFE_ORPHAN_AGE_HOURS,
        le=87_600,
        description="Files that no snapshot names are removed when they are older. A commit that is under way names "
        "its files only at its end, so this must be longer than any commit takes.",
    )
    min_manifests: Annotated[int, Unit("manifests")] = Field(
        default=32, ge=2, le=100_000, description="With so many manifests, they are rewritten to few."
    )
    conflict_tries: Annotated[int, Unit("tries")] = Field(
        default=5, ge=1, le=100, description="How often a step that lost to other commits is tried in all."
    )

    @model_validator(mode="after")
    def _rewrites_fill_a_file(self) -> Self:
        if self.target_file_bytes is not None and self.max_rewrite_bytes < self.target_file_bytes:
            refuse("max_rewrite_bytes", f"must be at least maintenance.target_file_bytes, {self.target_file_bytes}")
        return self
