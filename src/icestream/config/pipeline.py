"""The Spark pipeline and table maintenance: where they run, their limits, and retries."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from icestream.config.fields import Allowed, DefaultText, Section, Unit, refuse
from icestream.model.units import GIB, KIB, MIB, TIB

# What Spark accepts as a master. It is checked here, because Spark itself reports a wrong one with a JVM stack trace.
_COUNT = r"0*[1-9][0-9]*"
_LOCAL = rf"local(\[({_COUNT}|\*)( *, *{_COUNT})?\])?"
_LOCAL_CLUSTER = rf"local-cluster\[ *{_COUNT} *, *{_COUNT} *, *{_COUNT} *\]"
_ADDRESS = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.\-]+):[0-9]{1,5}"
_STANDALONE = rf"spark://{_ADDRESS}(,{_ADDRESS})*"

MASTER_PATTERN = rf"^({_LOCAL}|{_LOCAL_CLUSTER}|{_STANDALONE}|yarn|k8s://[^\s]+)$"
MASTER_TEXT = Allowed(
    "`local`, `local[N]`, `local[*]`, `local[N,M]` (N cores, M attempts per task), `local-cluster[N,CORES,MB]`, "
    "`spark://host:port` (several `host:port` with commas), `yarn` or `k8s://…`"
)


class PipelineSettings(Section):
    """How the log becomes tables; `writer` says when. Used by the pipeline, and by the broker that runs it."""

    enabled: bool = Field(default=True, description="Whether `icestream serve` also runs a pipeline.")
    master: Annotated[str, MASTER_TEXT] = Field(
        default="local[*]",
        pattern=MASTER_PATTERN,
        description="The Spark master: `local[N]` for N cores of this machine, or a cluster's URL.",
    )
    topics: str = Field(
        default="*",
        min_length=1,
        description="The topics it writes, as a pattern with `*` and `?` that matches whole names.",
    )
    parallelism: Annotated[int, Unit("tasks")] = Field(
        default=0, ge=0, le=10_000, description="Tasks that run at once; 0 means as many as Spark has cores."
    )
    max_task_bytes: int = Field(
        default=128 * MIB,
        ge=64 * KIB,
        le=64 * GIB,
        description="About the most bytes of log that one task turns into files.",
    )
    max_pass_bytes: int = Field(
        default=GIB,
        ge=64 * KIB,
        le=1024 * GIB,
        description="About the most bytes of log in one pass; a larger backlog takes several passes. "
        "At least `pipeline.max_task_bytes`.",
    )
    max_pass_topics: Annotated[int, Unit("topics")] = Field(
        default=1_000,
        ge=1,
        le=100_000,
        description="Most topics that one pass writes; the next pass writes the others.",
    )
    poll_interval_ms: int = Field(
        default=50,
        ge=5,
        le=60_000,
        description="Shortest time between two requests to the broker for new messages.",
    )
    broker_timeout_ms: int = Field(
        default=10_000,
        ge=0,
        le=86_400_000,
        description="How long a broker may be unreachable before the pipeline reads topics from cloud objects, if "
        "`cloud.backend` is set. The pipeline returns to the broker when it is reachable again.",
    )
    commit_threads: Annotated[int, Unit("threads")] = Field(
        default=8, ge=1, le=256, description="Tables that are committed at the same time."
    )
    retry_interval_ms: int = Field(
        default=1_000,
        ge=1,
        le=3_600_000,
        description="How long a topic pauses after a failure; the pause doubles with each further failure.",
    )
    max_retry_interval_ms: int = Field(
        default=60_000,
        ge=1,
        le=86_400_000,
        description="Longest pause of a topic that keeps failing. At least `pipeline.retry_interval_ms`.",
    )
    quarantine_after: Annotated[int, Unit("failures")] = Field(
        default=5,
        ge=0,
        le=1_000,
        description="How often the same messages may fail before the pipeline finds the faulty frame and puts it into "
        "quarantine, so that later messages are written; 0 turns this off. Only failures that messages cause count.",
    )
    max_quarantined: Annotated[int, Unit("frames")] = Field(
        default=10,
        ge=1,
        le=1_000,
        description="Most frames of a topic in quarantine, not counting those that were published again with "
        "`icestream quarantine retry`. If more fail, the topic pauses instead.",
    )
    ui: bool = Field(default=False, description="Whether Spark's web interface is on; without it, start-up is quicker.")
    driver_memory_mb: int = Field(
        default=512, ge=256, le=65_536, description="Heap of the driver's JVM; messages never pass through it."
    )
    java_options: str = Field(
        default="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        description="Options of the driver's JVM; the default keeps start-up short.",
    )
    class_archive: bool = Field(
        default=True, description="Whether the JVM's classes are loaded from an archive in the cache folder, if made."
    )
    spark: dict[str, str] = Field(
        default={}, description="More Spark properties, such as `spark.executor.memory`; they override derived ones."
    )
    restart_interval_ms: int = Field(
        default=1_000,
        ge=1,
        le=3_600_000,
        description="How long `icestream serve` waits before it restarts a pipeline that died; up to a minute if it "
        "keeps dying.",
    )
    log_max_bytes: int = Field(
        default=16 * MIB,
        ge=64 * KIB,
        le=16 * GIB,
        description="Size at which the pipeline's log file is rotated; one older file is kept.",
    )

    @model_validator(mode="after")
    def _limits_fit(self) -> Self:
        if self.max_pass_bytes < self.max_task_bytes:
            refuse("max_pass_bytes", f"must be at least pipeline.max_task_bytes, {self.max_task_bytes}")
        if self.max_retry_interval_ms < self.retry_interval_ms:
            refuse("max_retry_interval_ms", f"must be at least pipeline.retry_interval_ms, {self.retry_interval_ms}")
        return self


SAFE_ORPHAN_AGE_HOURS = 24
"""A commit under way may still add a younger file to the table. Iceberg refuses a shorter time, too."""


class MaintenanceSettings(Section):
    """How tables are kept fast and small. Used by `icestream maintain`, and by the broker that runs it."""

    enabled: bool = Field(default=True, description="Whether `icestream serve` runs maintenance.")
    interval_minutes: int = Field(
        default=60, ge=1, le=43_200, description="Time between the end of one run and the next."
    )
    orphan_interval_hours: int = Field(
        default=24,
        ge=1,
        le=8_760,
        description="The first run looks for orphan files, later ones only after this time: it lists whole tables.",
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
        description="Adjacent small files are compacted if there are this many, or if they fill a target file.",
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
        default=10, ge=1, le=100_000, description="This many of the newest snapshots stay, at any age."
    )
    orphan_age_hours: int = Field(
        default=72,
        ge=SAFE_ORPHAN_AGE_HOURS,
        le=87_600,
        description="Files that no snapshot names are removed if they are older. A commit names its files only at its "
        "end, so this must be longer than any commit takes.",
    )
    min_manifests: Annotated[int, Unit("manifests")] = Field(
        default=32, ge=2, le=100_000, description="This many manifests are rewritten into fewer."
    )
    conflict_tries: Annotated[int, Unit("tries")] = Field(
        default=5, ge=1, le=100, description="How often a step is tried in all, if other commits win against it."
    )

    @model_validator(mode="after")
    def _rewrites_fill_a_file(self) -> Self:
        if self.target_file_bytes is not None and self.max_rewrite_bytes < self.target_file_bytes:
            refuse("max_rewrite_bytes", f"must be at least maintenance.target_file_bytes, {self.target_file_bytes}")
        return self
