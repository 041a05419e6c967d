"""The root of the settings, and the defaults and rules that concern several sections."""

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

# Locations of files: a directory, relative or not, or a URI

_SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
_LOCAL = "file"


def is_within(location: str, folder: str) -> bool:
    """Return whether a location is a folder or lies in it, at any depth."""
    outer = _parts(folder)
    return _parts(location)[: len(outer)] == outer


def first_below(location: str, folder: str) -> str | None:
    """Return the first name below `folder` on the way to `location`; None if the location is not below it."""
    inner, depth = _parts(location), len(_parts(folder))
    return inner[depth] if is_within(location, folder) and len(inner) > depth else None


def _parts(location: str) -> tuple[str, ...]:
    """Return the store and the names of the path."""
    scheme, separator, path = location.partition("://")
    if not separator:
        scheme, path = _LOCAL, location
    scheme = scheme.lower()
    if scheme == _LOCAL:
        path = str(Path(path).resolve())  # links and `..` must not hide that two locations are the same
    return (_SAME_STORE.get(scheme, scheme), *(part for part in path.split("/") if part))


DEFAULT_DATA_DIR = Path("icestream-data")
_BUCKET_SCHEMES = {"s3": "s3", "gcs": "gs"}


class Settings(Section):
    """All settings, immutable.

    `Settings()` holds the embedded defaults, and `Settings(data_dir=...)` moves all of them. Neither reads a file or
    the environment. `load_settings` does.
    """

    data_dir: LocalPath = Field(
        default=DEFAULT_DATA_DIR, description="Directory for everything whose location no other setting names."
    )
    server: ServerSettings = Field(default=ServerSettings(), description="Ports and limits.")
    auth: AuthSettings = Field(default=AuthSettings(), description="Authentication.")
    topics: TopicSettings = Field(default=TopicSettings(), description="Defaults of new topics.")
    wal: WalSettings = Field(default=WalSettings(), description="The write-ahead log.")
    metadata: MetadataSettings = Field(default=MetadataSettings(), description="The metadata store.")
    storage: StorageSettings = Field(default=StorageSettings(), description="The kind of storage.")
    catalog: CatalogSettings = Field(default=CatalogSettings(), description="The Iceberg catalog.")
    object_store: ObjectStoreSettings = Field(default=ObjectStoreSettings(), description="The tables' files.")
    table: TableSettings = Field(default=TableSettings(), description="The tables' layout.")
    writer: WriterSettings = Field(default=WriterSettings(), description="When messages are written to tables.")
    pipeline: PipelineSettings = Field(default=PipelineSettings(), description="The Spark pipeline.")
    maintenance: MaintenanceSettings = Field(default=MaintenanceSettings(), description="Table maintenance.")
    reader: ReaderSettings = Field(default=ReaderSettings(), description="How topics are read.")
    subscriptions: SubscriptionSettings = Field(
        default=SubscriptionSettings(), description="Subscriptions and their consumers."
    )
    query: QuerySettings = Field(default=QuerySettings(), description="SQL over topics.")
    uploader: UploaderSettings = Field(default=UploaderSettings(), description="Uploading the log as cloud objects.")
    cloud: CloudSettings = Field(default=CloudSettings(), description="The store for cloud objects.")
    telemetry: TelemetrySettings = Field(default=TelemetrySettings(), description="OpenTelemetry.")
    log: LogSettings = Field(default=LogSettings(), description="Logging.")

    @model_validator(mode="before")
    @classmethod
    def _fill_data_dir(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Set the locations that are not given to ones in `data_dir`."""
        given = values.get("data_dir", DEFAULT_DATA_DIR)
        try:
            data_dir = TypeAdapter(LocalPath).validate_python(given)
        except ValidationError:
            return values  # the check of the field reports it
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
    def _tables_have_a_location(self) -> Self:
        if self.catalog.type in ("sql", "memory") and self.catalog.warehouse is None:
            refuse(
                "catalog.warehouse",
                f"must be set when catalog.type is {self.catalog.type}, object_store.type is {self.object_store.type} "
                "and object_store.bucket is unset",
            )
        return self

    @model_validator(mode="after")
    def _plain_files_have_a_location(self) -> Self:
        storage, catalog = self.storage, self.catalog
        is_known = "://" in (catalog.warehouse or "") or catalog.type in ("sql", "memory") or self.object_store.bucket
        if (
            storage.format is not StorageFormat.ICEBERG
            and storage.parquet_path is None
            and (catalog.type == "rest" or not is_known)
        ):
            refuse(
                "storage.parquet_path",
                f"must be set when storage.format is {storage.format} and only the {catalog.type} catalog knows "
                "where tables are",
            )
        return self

    @model_validator(mode="after")
    def _plain_files_are_not_among_tables(self) -> Self:
        """Keep plain files out of table folders: maintenance removes files there that no snapshot names."""
        path, warehouse = self.storage.parquet_path, self.catalog.warehouse
        if path is None or warehouse is None or (self.catalog.type == "rest" and "://" not in warehouse):
            return self
        if is_within(path, warehouse) and not _is_no_namespace(first_below(path, warehouse)):
            refuse(
                "storage.parquet_path",
                f"must not be in catalog.warehouse ({warehouse}): maintenance of tables would remove its files. Use a "
                "folder outside it, or one in it whose name begins with `-`, as no namespace does",
            )
        return self

    @model_validator(mode="after")
    def _uploads_have_a_target(self) -> Self:
        if self.uploader.enabled and self.cloud.backend is None:
            refuse("uploader.enabled", "cannot be true while cloud.backend is unset: set the store for uploads")
        if self.uploader.enabled:
            self.uploader.check_parts(self.cloud)
        return self


def _is_no_namespace(folder: str | None) -> bool:
    """Return whether no table can be in this folder of the warehouse."""
    return folder is not None and folder.startswith("-")


def _given(values: Mapping[str, Any], section: str, name: str, default: object) -> object:
    """Return a field of a section, which may be absent, a mapping, or an instance."""
    found = values.get(section)
    if isinstance(found, Section):
        return getattr(found, name)
    return found.get(name, default) if isinstance(found, Mapping) else default


def _fill(values: dict[str, Any], section: str, kind: type[Section], **defaults: object) -> None:
    """Set fields of a section that are not set. An optional field that is null or empty counts as not set."""
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
