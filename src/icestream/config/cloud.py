"""Cloud objects of the log: their store, and the uploader."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from icestream.config.fields import LocalPath, Secret, Section, Unit, refuse

_URL_SCHEMES = {"s3": ("s3",), "gcs": ("gcs", "gs"), "azblob": ("azblob",)}  # allowed in `root`
_BELONGS_TO = {
    "region": ("s3",),
    "endpoint": ("s3", "gcs", "azblob"),
    "access_key": ("s3",),
    "secret_key": ("s3",),
    "session_token": ("s3",),
    "profile": ("s3",),
    "role_arn": ("s3",),
    "anonymous": ("s3", "gcs", "azblob"),
    "virtual_host_style": ("s3",),
    "project": ("gcs",),
    "credentials_json": ("gcs",),
    "credentials_path": ("gcs",),
    "account_name": ("azblob",),
    "account_key": ("azblob",),
}
_CREDENTIALS = ("access_key", "profile", "role_arn", "credentials_json", "credentials_path", "account_key")

_MAX_PARTS = 10_000  # of one object in `s3`
_MAX_OBJECT_MB = 5 * 1024 * 1024  # the largest object of `s3`, 5 TiB
_MESSAGES_PERCENT = 99  # of an object; the rest is for its index


class UploaderSettings(Section):
    """Uploads durable parts of the log as cloud objects. Used by the uploader."""

    enabled: bool = Field(default=False, description="Upload the log to the store that `cloud` names.")
    interval_seconds: int = Field(default=300, ge=1, le=86_400, description="Time between upload cycles.")
    root_prefix: str = Field(default="/icestream-data", description="Prefix of all object names, below `cloud.root`.")
    max_object_mb: int | None = Field(
        default=1_024,
        ge=1,
        le=_MAX_OBJECT_MB,
        description="Largest object; unset, a cycle uploads all there is as one object.",
    )
    threads: Annotated[int, Unit("threads")] = Field(
        default=2, ge=1, le=64, description="How many topics are uploaded at the same time."
    )
    shutdown_timeout_seconds: float = Field(
        default=10.0,
        ge=0.0,
        le=3_600.0,
        description="How long a stopping broker may take for a last upload and for releasing reserved offsets.",
    )

    def check_parts(self, cloud: "CloudSettings") -> None:
        """Raise if an object could be too large for the store, or have too many parts."""
        limit = min(cloud.part_mb * _MAX_PARTS, _MAX_OBJECT_MB) * _MESSAGES_PERCENT // 100
        if cloud.backend == "s3" and self.max_object_mb is not None and self.max_object_mb > limit:
            refuse(
                "uploader.max_object_mb",
                f"cannot be more than {limit}: an object has at most {_MAX_PARTS:,} parts of cloud.part_mb "
                f"({cloud.part_mb}) each, and one percent is kept for its index",
            )


class CloudRetentionSettings(Section):
    """When cloud objects of topics with a table are deleted, once the table has them. Used by retention.

    A topic without a table has its own retention.
    """

    time_minutes: int | None = Field(
        default=1_440,
        ge=1,
        le=60 * 24 * 3660,
        description="Delete objects whose newest message is older than this; unset, no limit.",
    )
    size_mb: int | None = Field(
        default=None, ge=1, le=1024 * 1024 * 1024, description="Delete the oldest objects of a topic beyond this size."
    )


class CloudSettings(Section):
    """The store for cloud objects of the log. Used by the uploader and the cloud reader."""

    backend: Literal["s3", "gcs", "azblob", "fs", "memory"] | None = Field(
        default=None, description="Kind of store; unset, the log stays local."
    )
    root: str | None = Field(
        default=None,
        description="Where objects are stored: `s3://bucket/prefix`, `gcs://bucket/prefix`, `container/prefix`, a "
        "directory for `fs`, any name for `memory`.",
    )
    region: str | None = Field(default=None, description="Region of an `s3` bucket.")
    endpoint: str | None = Field(default=None, description="URL of the service, for MinIO, Azurite and similar stores.")
    access_key: Secret = Field(
        default=None, description="Access key of `s3`; unset, the environment's credentials are used."
    )
    secret_key: Secret = Field(default=None, description="Secret key of `s3`.")
    session_token: Secret = Field(default=None, description="Session token of temporary `s3` credentials.")
    profile: str | None = Field(default=None, description="Named profile of the AWS configuration files.")
    role_arn: str | None = Field(default=None, description="AWS role to assume.")
    anonymous: bool = Field(default=False, description="Send requests without a signature, for public buckets.")
    virtual_host_style: bool = Field(default=False, description="Address `s3` buckets by host name instead of path.")
    project: str | None = Field(
        default=None, description="Google Cloud project of `gcs`. Informational: a bucket is found by its name alone."
    )
    credentials_json: Secret = Field(default=None, description="Service account of `gcs`, as JSON text.")
    credentials_path: LocalPath | None = Field(default=None, description="Service account of `gcs`, as a file.")
    account_name: str | None = Field(default=None, description="Account of `azblob`.")
    account_key: Secret = Field(default=None, description="Key of the `azblob` account.")
    timeout_ms: int = Field(
        default=10_000,
        ge=100,
        le=600_000,
        description="How long one request may take, including the transfer of a part, before it is retried.",
    )
    max_retries: Annotated[int, Unit("retries")] = Field(
        default=5,
        ge=0,
        le=20,
        description="How often a request is retried, with growing pauses, before the store counts as unavailable.",
    )
    part_mb: int = Field(
        default=8,
        ge=5,
        le=1_024,
        description="Objects larger than this are sent in parts of this size; `s3` allows 10,000 parts per object.",
    )
    parallel_parts: Annotated[int, Unit("parts")] = Field(
        default=4, ge=1, le=64, description="Parts of one object that are sent at a time; each is held in memory."
    )
    retention: CloudRetentionSettings = Field(
        default=CloudRetentionSettings(), description="When objects of topics with a table are deleted."
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.backend not in (None, "memory") and self.root is None:
            refuse("root", f"must be set when cloud.backend is {self.backend}")
        if (self.access_key is None) != (self.secret_key is None):
            missing = "access_key" if self.access_key is None else "secret_key"
            refuse(missing, "must be set too: cloud.access_key and cloud.secret_key belong together")
        for name in _CREDENTIALS:
            if self.anonymous and getattr(self, name) is not None:
                refuse("anonymous", f"cannot be true while cloud.{name} is set")
        if self.credentials_json is not None and self.credentials_path is not None:
            refuse("credentials_json", "cannot be set together with cloud.credentials_path")
        if self.backend is not None:
            self._check_backend(self.backend)
        return self

    def _check_backend(self, backend: str) -> None:
        for name, backends in _BELONGS_TO.items():
            if backend not in backends and getattr(self, name) != type(self).model_fields[name].default:
                refuse(name, f"belongs to cloud.backend {' or '.join(backends)}, not {backend}")
        if self.session_token is not None and self.access_key is None:
            refuse("session_token", "needs cloud.access_key and cloud.secret_key")
        if backend == "azblob" and self.account_key is not None and self.account_name is None:
            refuse("account_name", "must be set too: cloud.account_name and cloud.account_key belong together")
        if backend == "azblob" and self.endpoint is None and self.account_name is None:
            refuse("endpoint", "or cloud.account_name must be set when cloud.backend is azblob")
        if backend in _URL_SCHEMES and self.root is not None:
            scheme, found, place = self.root.rpartition("://")
            if found and scheme not in _URL_SCHEMES[backend]:
                refuse("root", f"must begin with {_URL_SCHEMES[backend][0]}:// when cloud.backend is {backend}")
            if not place.split("/")[0]:
                refuse("root", "must name a bucket or container")
