"""Cloud objects of the log: the store they lie in and the uploader that ships them."""

from typing import Literal, Self

from pydantic import Field, model_validator

from icestream.config.fields import LocalPath, Secret, Section, refuse


class UploaderSettings(Section):
    """Ships durable parts of the log to cloud objects. Used by the uploader."""

    enabled: bool = Field(default=False, description="Ship the log to the store that `cloud` names.")
    interval_seconds: int = Field(default=300, ge=1, le=86_400, description="Time between upload cycles.")
    root_prefix: str = Field(default="/icestream-data", description="Prefix of all object names, below `cloud.root`.")
    max_object_mb: int | None = Field(
        default=1_024,
        ge=1,
        le=5 * 1024 * 1024,
        description="Largest object of one cycle; unset, a cycle ships all there is.",
    )


class CloudSettings(Section):
    """The store for cloud objects of the log. Used by the uploader and the cloud reader."""

    backend: Literal["s3", "gcs", "azblob", "fs", "memory"] | None = Field(
        default=None, description="Kind of store; unset, the log stays local."
    )
    root: str | None = Field(
        default=None,
        description="Where objects go: `s3://bucket/prefix`, `gcs://bucket/prefix`, `container/prefix`, a directory "
        "for `fs`, any name for `memory`.",
    )
    region: str | None = Field(default=None, description="Region of an `s3` bucket.")
    endpoint: str | None = Field(default=None, description="URL of the service, for MinIO, Azurite and the like.")
    access_key: Secret = Field(
        default=None, description="Access key of `s3`; unset, the environment's credentials are used."
    )
    secret_key: Secret = Field(default=None, description="Secret key of `s3`.")
    session_token: Secret = Field(default=None, description="Session token of temporary `s3` credentials.")
    profile: str | None = Field(default=None, description="Named profile of the AWS configuration files.")
    role_arn: str | None = Field(default=None, description="AWS role to assume.")
    anonymous: bool = Field(default=False, description="Send requests without a signature, for public buckets.")
    virtual_host_style: bool = Field(default=False, description="Address `s3` buckets by host name instead of path.")
    project: str | None = Field(default=None, description="Google Cloud project of `gcs`.")
    credentials_json: Secret = Field(default=None, description="Service account of `gcs`, as JSON text.")
    credentials_path: LocalPath | None = Field(default=None, description="Service account of `gcs`, as a file.")
    account_name: str | None = Field(default=None, description="Account of `azblob`.")
    account_key: Secret = Field(default=None, description="Key of the `azblob` account.")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.backend not in (None, "memory") and self.root is None:
            refuse("root", f"must be set when cloud.backend is {self.backend}")
        if (self.access_key is None) != (self.secret_key is None):
            missing = "access_key" if self.access_key is None else "secret_key"
            refuse(missing, "must be set too: cloud.access_key and cloud.secret_key belong together")
        if self.anonymous and self.access_key is not None:
            refuse("anonymous", "cannot be true while cloud.access_key is set")
        if self.credentials_json is not None and self.credentials_path is not None:
            refuse("credentials_json", "cannot be set together with cloud.credentials_path")
        return self
