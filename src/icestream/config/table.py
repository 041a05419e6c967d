"""Iceberg tables: catalog, object store, layout, writing and reading."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from icestream.config.fields import DefaultText, LocalPath, Secret, Section, Unit, refuse
from icestream.model.enums import StorageFormat
from icestream.model.units import GIB, KIB, MIB, TIB


def _store_type(value: object) -> object:
    return "fs" if value == "local" else value


class StorageSettings(Section):
    """The kind of storage behind topics. Used by the storage facade."""

    type: Literal["iceberg"] = Field(
        default="iceberg", description="Topics are Iceberg tables; there is no other type."
    )
    format: StorageFormat = Field(
        default=StorageFormat.ICEBERG,
        description="What messages are written as: Iceberg tables, a Parquet copy (plain files in "
        "folders by date and hour), or both, to "
        "move from the one to the other. The pipeline uses its broker's setting.",
    )
    parquet_path: Annotated[
        str | None,
        DefaultText(
            "`parquet` next to the warehouse: `{data_dir}/parquet`; `-parquet` in a bucket that is the warehouse itself"
        ),
    ] = Field(
        default=None,
        description="Where the Parquet copy is written, a directory or a URI outside the warehouse: "
        "`{parquet_path}/{namespace}/{topic}/date=2026-11-30/hour=09/….parquet`, by publish time in UTC. A topic "
        "keeps the path that it began with.",
    )


class CatalogSettings(Section):
    """The Iceberg catalog that holds the tables. Used by tables and the pipeline."""

    type: Literal["sql", "rest", "glue", "memory"] = Field(default="sql", description="Kind of catalog.")
    name: str = Field(default="icestream", min_length=1, description="The catalog's name, as engines see it.")
    uri: Annotated[str | None, DefaultText("`sqlite:///{data_dir}/catalog.db` for type `sql`, else none")] = Field(
        default=None, description="Where the catalog is: a database URI for `sql`, the server's URL for `rest`."
    )
    warehouse: Annotated[
        str | None,
        DefaultText("for types `sql` and `memory` `{data_dir}/warehouse`, or the object store's bucket; else none"),
    ] = Field(
        default=None,
        description="Where tables are stored: a directory, a URI, or the warehouse name of a REST catalog.",
    )
    timeout_seconds: int = Field(
        default=30,
        ge=1,
        le=3_600,
        description="How long one request to the catalog, or to the store of the tables' files, may take.",
    )
    scan_planning: Literal["client", "server"] = Field(
        default="client",
        description="Who plans which files a read needs: icestream, or a `rest` catalog that supports it.",
    )
    properties: dict[str, str] = Field(
        default={},
        description="More properties for the catalog library, such as `s3.endpoint`; they override derived ones.",
    )

    @model_validator(mode="after")
    def _rest_has_uri(self) -> Self:
        if self.type == "rest" and self.uri is None:
            refuse("uri", "must be set when catalog.type is rest")
        return self


class ObjectStoreSettings(Section):
    """The object store that holds the tables' files. Used by tables and the pipeline."""

    type: Annotated[Literal["fs", "s3", "gcs", "azblob", "memory"], BeforeValidator(_store_type)] = Field(
        default="fs", description="Kind of store; `local` is another name of `fs`."
    )
    bucket: str | None = Field(default=None, description="Bucket, or container for `azblob`.")
    region: str | None = Field(default=None, description="Region of the bucket.")
    endpoint: str | None = Field(default=None, description="URL of the service, for MinIO and other compatible stores.")
    path_style: bool = Field(default=False, description="Address buckets by path instead of host name, as MinIO needs.")
    access_key: Secret = Field(
        default=None, description="Access key of `s3`; unset, the environment's credentials are used."
    )
    secret_key: Secret = Field(default=None, description="Secret key of `s3`.")
    session_token: Secret = Field(default=None, description="Session token of temporary `s3` credentials.")
    credentials_path: LocalPath | None = Field(default=None, description="File with the service account of `gcs`.")
    account_name: str | None = Field(default=None, description="Account of `azblob`.")
    account_key: Secret = Field(default=None, description="Key of the `azblob` account.")

    @model_validator(mode="after")
    def _both_keys(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            missing = "access_key" if self.access_key is None else "secret_key"
            refuse(missing, "must be set too: object_store.access_key and object_store.secret_key belong together")
        return self


class TableSettings(Section):
    """How a topic's table is laid out and kept small. Used by tables and the pipeline."""

    target_file_bytes: int = Field(
        default=256 * MIB,
        ge=MIB,
        le=16 * GIB,
        description="A data file is closed when it has about this size; applies to tables created from now on.",
    )
    row_group_bytes: int = Field(
        default=32 * MIB,
        ge=64 * KIB,
        le=GIB,
        description="Message bytes in one Parquet row group; at most a quarter of `writer.max_memory_bytes` is used.",
    )
    bloom_filter_columns: str = Field(
        default="trace_id",
        description="Names of columns, separated by commas, that get bloom filters wherever a topic has them: "
        "a look-up of one value then reads little. It applies to tables created from now on.",
    )
    compression: Literal["zstd", "snappy", "lz4", "gzip", "none"] = Field(
        default="zstd", description="Codec of data files; applies to tables created from now on."
    )
    compression_level: Annotated[int, Unit("level of the codec")] = Field(
        default=1, ge=1, le=22, description="Level of `zstd` or `gzip` (which has 9); the others have none."
    )
    max_snapshots: Annotated[int, Unit("snapshots")] = Field(
        default=100,
        ge=2,
        le=100_000,
        description="At this number, a commit drops the oldest ones; those that a branch or tag names stay.",
    )
    manifest_merge_count: Annotated[int, Unit("manifests")] = Field(
        default=16, ge=2, le=10_000, description="This many manifests of similar size are merged by the next commit."
    )
    metadata_versions: Annotated[int, Unit("files")] = Field(
        default=20,
        ge=1,
        le=10_000,
        description="Older metadata files that are kept; applies to tables created from now on.",
    )
    unused_file_grace_seconds: int = Field(
        default=600,
        ge=0,
        le=604_800,
        description="Metadata files that no snapshot needs any more are removed after this time.",
    )

    @property
    def filtered_columns(self) -> list[str]:
        """The entries of `bloom_filter_columns`."""
        return [name.strip() for name in self.bloom_filter_columns.split(",") if name.strip()]


class WriterSettings(Section):
    """When waiting messages become a table snapshot. Used by the pipeline."""

    batch_size: Annotated[int, Unit("messages")] = Field(
        default=100_000,
        ge=1,
        le=1_000_000_000,
        description="A topic with this many waiting messages is written at once.",
    )
    flush_interval_ms: int = Field(
        default=5_000,
        ge=1,
        le=86_400_000,
        description="Waiting messages are written after this time, even if they are few.",
    )
    max_memory_bytes: int = Field(
        default=128 * MIB, ge=64 * KIB, le=64 * GIB, description="Most message bytes that one write task holds."
    )


class ReaderSettings(Section):
    """How topics are read. Used by readers."""

    poll_interval_ms: int = Field(
        default=1_000, ge=1, le=3_600_000, description="How often readers look for a new snapshot of the table."
    )
    max_concurrent_reads: Annotated[int, Unit("files")] = Field(
        default=10, ge=1, le=1_024, description="Most data files that one reader reads at once."
    )
    prefetch_size: Annotated[int, Unit("batches")] = Field(
        default=5, ge=1, le=10_000, description="Most decoded batches that one reader keeps ready."
    )
    tail_max_bytes: int = Field(
        default=32 * MIB,
        ge=0,
        le=TIB,
        description="Most bytes of decoded messages that readers near the ends of all topics share.",
    )
    lease_timeout_ms: int = Field(
        default=60_000,
        ge=0,
        le=86_400_000,
        description="Longest time that a reader delays the removal of segments or objects; then it reads the table.",
    )
    cloud_prefetch_bytes: int = Field(
        default=16 * MIB,
        ge=0,
        le=TIB,
        description="Most bytes of cloud objects that one reader reads ahead.",
    )
    cloud_prefetch_max_bytes: int = Field(
        default=256 * MIB,
        ge=0,
        le=TIB,
        description="Most bytes of cloud objects that all readers together read ahead.",
    )
    cloud_threads: Annotated[int, Unit("threads")] = Field(
        default=8, ge=1, le=256, description="Threads that read ahead in cloud objects, shared by all readers."
    )
