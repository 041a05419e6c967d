"""The root of the tree, and the defaults that depend on other settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from icestream.config.broker import (
    AuthSettings,
    LogSettings,
    QuerySettings,
    ServerSettings,
    SubscriptionSettings,
    TopicSettings,
)
from icestream.config.cloud import CloudSettings, UploaderSettings
from icestream.config.fields import LocalPath, Section, refuse, union_members
from icestream.config.locations import first_below, is_within
from icestream.config.metadata import MetadataSettings
from icestream.config.pipeline import MaintenanceSettings, PipelineSettings
from icestream.config.table import (
    CatalogSettings,
    ObjectStoreSettings,
    ReaderSettings,
    StorageSettings,
    TableSettings,
    WriterSettings,
)
from icestream.config.telemetry import TelemetrySettings
from icestream.config.wal import WalSettings
from icestream.model.enums import StorageFormat

DEFAULT_DATA_DIR = Path("icestream-data")
_BUCKET_SCHEMES = {"s3": "s3", "gcs": "gs"}


class Settings(Section):
    """All settings, immutable.

    `Settings()` holds the embedded defaults, and `Settings(data_dir=...)` moves all of them. Neither reads a file or
    the environment. `load_settings` does.
    """

    data_dir: LocalPath = Field(
        default=DEFAULT_DATA_DIR, description="Directory for everything that no other setting puts elsewhere."
    )
    server: ServerSettings = Field(default=ServerSettings(), description="Doors and limits.")
    auth: AuthSettings = Field(default=AuthSettings(), description="Who may come in.")
    topics: TopicSettings = Field(default=TopicSettings(), description="What a topic gets by default.")
    wal: WalSettings = Field(default=WalSettings(), description="The write-ahead log.")
    metadata: MetadataSettings = Field(default=MetadataSettings(), description="The metadata store.")
    storage: StorageSettings = Field(default=StorageSettings(), description="The kind of storage.")
    catalog: CatalogSettings = Field(default=CatalogSettings(), description="The Iceberg catalog.")
    object_store: ObjectStoreSettings = Field(default=ObjectStoreSettings(), description="The tables' files.")
    table: TableSettings = Field(default=TableSettings(), description="The tables' layout.")
    writer: WriterSettings = Field(default=WriterSettings(), description="When messages become snapshots.")
    pipeline: PipelineSettings = Field(default=PipelineSettings(), description="The Spark pipeline.")
    maintenance: MaintenanceSettings = Field(default=MaintenanceSettings(), description="Table maintenance.")
    reader: ReaderSettings = Field(default=ReaderSettings(), description="How tables are read.")
    subscriptions: SubscriptionSettings = Field(
        default=SubscriptionSettings(), description="Subscriptions and their consumers."
    )
    query: QuerySettings = Field(default=QuerySettings(), description="SQL over topics.")
    uploader: UploaderSettings = Field(default=UploaderSettings(), description="Shipping the log to cloud objects.")
    cloud: CloudSettings = Field(default=CloudSettings(), description="The store for cloud objects.")
    telemetry: TelemetrySettings = Field(default=TelemetrySettings(), description="OpenTelemetry's tenants and topics.")
    log: LogSettings = Field(default=LogSettings(), description="Logging.")

    @model_validator(mode="before")
    @classmethod
    def _fill_data_dir(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Put what has no place of its own into `data_dir`."""
        given = values.get("data_dir", DEFAULT_DATA_DIR)
        try:
            data_dir = TypeAdapter(LocalPath).validate_python(given)
        except ValidationError:
            return values  # the field's own check will say so
        filled = dict(values)
        _fill(filled, "wal", WalSettings, dir=data_dir / "wal")
        _fill(filled, "metadata", MetadataSettings, sqlite_path=data_dir / "metadata.db")
        catalog = _given(filled, "catalog", "type", "sql")
        if catalog == "sql":
            _fill(filled, "catalog", CatalogSettings, uri=f"sqlite:///{data_dir / 'catalog.db'}")
        if catalog in ("sql", "memory"):
            _fill(filled, "catalog", CatalogSettings, warehouse=_default_warehouse(filled, data_dir))
        return filled

    @model_validator(mode="after")
    def _tables_have_a_place(self) -> Self:
        if self.catalog.type in ("sql", "memory") and self.catalog.warehouse is None:
            refuse(
                "catalog.warehouse",
                f"must be set when catalog.type is {self.catalog.type}, object_store.type is {self.object_store.type} "
                "and no bucket says where tables go",
            )
        return self

    @model_validator(mode="after")
    def _plain_files_have_a_place(self) -> Self:
        storage, catalog = self.storage, self.catalog
        is_known = "://" in (catalog.warehouse or "") or catalog.type in ("sql", "memory") or self.object_store.bucket
        if (
            storage.format is not StorageFormat.ICEBERG
            and storage.parquet_path is None
            and (catalog.type == "rest" or not is_known)
        ):
            refuse(
                "storage.parquet_path",
                f"must be set when storage.format is {storage.format} and only a {catalog.type} catalog knows where "
                "tables are",
            )
        return self

    @model_validator(mode="after")
    def _plain_files_are_not_among_tables(self) -> Self:
        """Maintenance removes what it finds in a table's folder and no snapshot of that table names."""
        path, warehouse = self.storage.parquet_path, self.catalog.warehouse
        if path is None or warehouse is None or (self.catalog.type == "rest" and "://" not in warehouse):
            return self
        if is_within(path, warehouse) and not _is_no_namespace(first_below(path, warehouse)):
            refuse(
                "storage.parquet_path",
                f"must not be in catalog.warehouse ({warehouse}), where the clean-up of tables would take its files "
                "for theirs: use a place beside it, or in it a folder that begins with `-`, which no namespace does",
            )
        return self

    @model_validator(mode="after")
    def _uploads_have_a_target(self) -> Self:
        if self.uploader.enabled and self.cloud.backend is None:
            refuse("uploader.enabled", "cannot be true while cloud.backend is unset: say where to upload")
        if self.uploader.enabled:
            self.uploader.check_parts(self.cloud)
        return self


def _is_no_namespace(folder: str | None) -> bool:
    """Whether a folder of the warehouse is one that no topic's table can be in."""
    return folder is not None and folder.startswith("-")


def _given(values: Mapping[str, Any], section: str, name: str, default: object) -> object:
    """A field of a section that may be absent, a mapping or an instance already."""
    found = values.get(section)
    if isinstance(found, Section):
        return getattr(found, name)
    return found.get(name, default) if isinstance(found, Mapping) else default


def _fill(values: dict[str, Any], section: str, kind: type[Section], **defaults: object) -> None:
    """Set fields of a section that nobody set. An optional field set to nothing is not set either."""
    found = values.get(section, {})
    for name, default in defaults.items():
        nothing = (None, "") if type(None) in union_members(kind.model_fields[name].annotation) else ()
        if isinstance(found, kind):
            if name not in found.model_fields_set or getattr(found, name) in nothing:
                found = found.model_copy(update={name: default})
        elif isinstance(found, Mapping) and (name not in found or found[name] in nothing):
            found = {**found, name: default}
    values[section] = found


def _default_warehouse(values: Mapping[str, Any], data_dir: Path) -> str | None:
    store = _given(values, "object_store", "type", "fs")
    bucket = _given(values, "object_store", "bucket", None)
    if store in ("fs", "local"):
        return str(data_dir / "warehouse")
    scheme = _BUCKET_SCHEMES.get(str(store))
    return f"{scheme}://{bucket}" if scheme and bucket else None
