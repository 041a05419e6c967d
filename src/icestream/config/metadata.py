"""The metadata store: topics, subscriptions, leases, object descriptors."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from icestream.config.fields import Allowed, DefaultText, LocalPath, Secret, Section, refuse

_ENDPOINT = r"^(https?://)?(\[[0-9A-Fa-f:.%]+\]|[^\s/@:,\[\]]+):[0-9]{1,5}/?$"


def _endpoints(value: object) -> object:
    """Split text with one or several addresses; leave a list alone."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


class MetadataSettings(Section):
    """Where topics, subscriptions and object descriptors are kept. Used by the metadata store."""

    etcd_endpoint: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=_ENDPOINT)], ...],
        BeforeValidator(_endpoints),
        Allowed(
            "an address `host:port`, several separated by commas, or a list of them; `https://` before one means TLS"
        ),
        DefaultText("none"),
    ] = Field(default=(), description="Keep metadata in this etcd cluster instead of SQLite.")
    etcd_ca_file: LocalPath | None = Field(
        default=None,
        description="CA certificates (PEM) for etcd's certificate. Setting it turns TLS on, as `https://` does.",
    )
    etcd_cert_file: LocalPath | None = Field(
        default=None, description="Client certificate (PEM) for etcd. Needs `metadata.etcd_key_file`."
    )
    etcd_key_file: LocalPath | None = Field(
        default=None, description="Private key (PEM) of the certificate. Needs `metadata.etcd_cert_file`."
    )
    etcd_user: str | None = Field(
        default=None, min_length=1, description="User of etcd. Needs `metadata.etcd_password`."
    )
    etcd_password: Secret = Field(default=None, description="Password of the user. Needs `metadata.etcd_user`.")
    etcd_prefix: Annotated[
        str,
        StringConstraints(pattern=r"^(/[^\s/]+)*$", max_length=256),
        Allowed("nothing, or a path such as `/production/icestream`"),
        DefaultText("none"),
    ] = Field(default="", description="Prefix of every key, so that several installations can share an etcd.")
    etcd_timeout_ms: int = Field(
        default=10_000,
        ge=100,
        le=600_000,
        description="How long a call tries etcd's endpoints in turn before it fails with a retryable error.",
    )
    in_memory: bool = Field(default=False, description="Keep metadata in memory only, for tests: it is lost at exit.")
    sqlite_path: Annotated[LocalPath, DefaultText("{data_dir}/metadata.db")] = Field(
        default=Path("icestream-data/metadata.db"),
        description="The SQLite file, used if neither etcd nor memory is chosen.",
    )

    @model_validator(mode="after")
    def _one_store(self) -> Self:
        if self.in_memory and self.etcd_endpoint:
            refuse("in_memory", "cannot be true while metadata.etcd_endpoint is set: choose one store")
        return self

    @model_validator(mode="after")
    def _complete_pairs(self) -> Self:
        for one, other in (("etcd_cert_file", "etcd_key_file"), ("etcd_user", "etcd_password")):
            for given, missing in ((one, other), (other, one)):
                if getattr(self, given) is not None and getattr(self, missing) is None:
                    refuse(missing, f"must be set when metadata.{given} is")
        return self

    @model_validator(mode="after")
    def _no_plain_endpoint_with_certificates(self) -> Self:
        has_files = self.etcd_ca_file is not None or self.etcd_cert_file is not None
        if has_files and any(endpoint.startswith("http://") for endpoint in self.etcd_endpoint):
            refuse("etcd_endpoint", "cannot be http:// while certificates are set: use https://, or no scheme")
        return self
