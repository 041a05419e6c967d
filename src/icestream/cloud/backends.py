"""What OpenDAL is told for each backend.

Settings that are not given are not passed on, so that OpenDAL looks where each provider's own tools do: environment
variables, configuration files, the machine's identity.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from icestream.config import CloudSettings
from icestream.model.errors import InvalidRequestError

_AZURE = "https://{account}.blob.core.windows.net"


@dataclass(frozen=True)
class Backend:
    """A service of OpenDAL, where in it our objects are, and what must never be shown."""

    scheme: str
    options: Mapping[str, str] = field(repr=False)
    base: str  # stands before every key; empty or with a slash at its end
    name: str  # for people
    secrets: tuple[str, ...] = field(repr=False)


def backend_of(settings: CloudSettings, prefix: str) -> Backend:
    """Settings are valid already: what belongs together is there, and what does not is not."""
    if settings.backend is None:
        raise InvalidRequestError("there is no object store", operation="open store", remedy="set cloud.backend")
    root = settings.root or ""
    if settings.backend in ("s3", "gcs", "azblob"):
        place, _, inner = root.rpartition("://")[2].partition("/")
        options = _CLOUDS[settings.backend](settings, place)
        name = f"{settings.backend}://{place}"
    else:
        place, inner = (str(Path(root).expanduser().absolute()), "") if settings.backend == "fs" else (root, "")
        options = {"root": place} if settings.backend == "fs" else {}
        name = place if settings.backend == "fs" else f"memory://{place}"
    base = "".join(f"{part}/" for part in f"{inner}/{prefix}".split("/") if part)
    given = {option: value for option, value in options.items() if value}
    return Backend(settings.backend, given, base, f"{name.rstrip('/')}/{base}".rstrip("/"), _secrets(settings))


def _s3(settings: CloudSettings, bucket: str) -> dict[str, str]:
    return {
        "bucket": bucket,
        "region": settings.region or "",
        "endpoint": settings.endpoint or "",
        "access_key_id": _shown(settings.access_key),
        "secret_access_key": _shown(settings.secret_key),
        "session_token": _shown(settings.session_token),
        "profile": settings.profile or "",
        "role_arn": settings.role_arn or "",
        "skip_signature": _flag(settings.anonymous),
        "enable_virtual_host_style": _flag(settings.virtual_host_style),
    }


def _gcs(settings: CloudSettings, bucket: str) -> dict[str, str]:
    return {
        "bucket": bucket,
        "endpoint": settings.endpoint or "",
        "credential": base64.b64encode(_shown(settings.credentials_json).encode()).decode(),
        "credential_path": str(settings.credentials_path or ""),
        "skip_signature": _flag(settings.anonymous),
    }


def _azblob(settings: CloudSettings, container: str) -> dict[str, str]:
    return {
        "container": container,
        "endpoint": settings.endpoint or _AZURE.format(account=settings.account_name),
        "account_name": settings.account_name or "",
        "account_key": _shown(settings.account_key),
        "skip_signature": _flag(settings.anonymous),
    }


_CLOUDS: Mapping[str, Callable[[CloudSettings, str], dict[str, str]]] = {"s3": _s3, "gcs": _gcs, "azblob": _azblob}


def _shown(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""


def _flag(value: bool) -> str:
    return "true" if value else ""


def _secrets(settings: CloudSettings) -> tuple[str, ...]:
    named = ("access_key", "secret_key", "session_token", "credentials_json", "account_key")
    return tuple(value for value in (_shown(getattr(settings, name)) for name in named) if value)
