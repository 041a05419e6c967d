"""The metadata store: topics, subscriptions, leases, object descriptors."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from icestream.config.fields import Allowed, DefaultText, LocalPath, Section, refuse

_ENDPOINT = r"^(https?://)?(\[[0-9A-Fa-f:.%]+\]|[^\s/@:,\[\]]+):[0-9]{1,5}/?$"


def _endpoints(value: object) -> object:
    """Text with one or several addresses, or a list of them."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


class MetadataSettings(Section):
    """Where topics, subscriptions and leases are kept. Used by the metadata store."""

    etcd_endpoint: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=_ENDPOINT)], ...],
        BeforeValidator(_endpoints),
        Allowed("an address `host:port`, several with commas between, or a list of them"),
        DefaultText("none"),
    ] = Field(default=(), description="Keep metadata in this etcd cluster instead of SQLite.")
    in_memory: bool = Field(default=False, description="Keep metadata in memory only: for tests, all is gone at exit.")
    sqlite_path: Annotated[LocalPath, DefaultText("{data_dir}/metadata.db")] = Field(
        default=Path("icestream-data/metadata.db"),
        description="The SQLite file, used when neither of the others is chosen.",
    )

    @model_validator(mode="after")
    def _one_store(self) -> Self:
        if self.in_memory and self.etcd_endpoint:
            refuse("in_memory", "cannot be true while metadata.etcd_endpoint is set: choose one store")
        return self
