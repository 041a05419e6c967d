"""Whose telemetry it is: by a token where tokens are given out, by a header where not.

A tenant is a namespace, and its name is checked as one before anything is looked up or made. Tokens are kept and looked
up as keyed digests with a key of this process alone, so that neither the time of a look-up nor a dump of the table
says anything about them.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from icestream.config import TelemetrySettings
from icestream.config.telemetry import ANY_TENANT
from icestream.model.errors import InvalidNameError
from icestream.model.names import MAX_PART_LENGTH, check_part
from icestream.telemetry.errors import TenantRefusedError, UnauthenticatedError
from icestream.telemetry.signals import Signal

RESERVED = frozenset({"icestream", "information_schema", "pg_catalog", "sys", "system"})
"""Names that query engines, or icestream itself, use for other things; those that begin with `_` are reserved too."""

_MAX_DATASET_LENGTH = MAX_PART_LENGTH - 1 - max(map(len, Signal))
_BEARER = "bearer"
_OPERATION = "identify tenant"


@dataclass(frozen=True)
class Sender:
    """For whom a request speaks."""

    tenant: str | None
    """Of everything that names no other one; None where the sender must name one."""
    dataset: str | None = None
    any_tenant: bool = True
    """Whether it may speak for others than `tenant`."""


class Tenants:
    def __init__(self, settings: TelemetrySettings, exists: Callable[[str], bool]) -> None:
        """`exists` tells whether a tenant has topics already."""
        self._settings = settings
        self._exists = exists
        self._key = secrets.token_bytes(32)
        self._by_token: dict[bytes, str] = {}
        for tenant, token in settings.token_pairs:
            if tenant != ANY_TENANT:
                check_tenant(tenant)
            self._by_token[self._digest(token)] = tenant
        given = [settings.default_tenant] if settings.default_tenant is not None else []
        self._known = {*settings.named_tenants, *given, *self._by_token.values()} - {ANY_TENANT}
        for tenant in self._known:
            check_tenant(tenant)

    def identify(self, headers: Mapping[str, str]) -> Sender:
        """Who sends a request, from its headers (in small letters); raises where that is nobody who may."""
        settings = self._settings
        owner = self._owner(headers.get("authorization", "")) if self._by_token else ANY_TENANT
        named = headers.get(settings.tenant_header)
        dataset = headers.get(settings.dataset_header)
        if dataset is not None:
            check_dataset(dataset)
        if owner != ANY_TENANT:
            if named not in (None, owner):
                raise TenantRefusedError(
                    "the token is another tenant's",
                    operation=_OPERATION,
                    remedy=f"leave the header {settings.tenant_header} out",
                )
            return Sender(owner, dataset, any_tenant=False)
        tenant = named if named is not None else settings.default_tenant
        if tenant is None:
            if settings.tenant_attribute is None:
                raise TenantRefusedError(
                    "the request names no tenant",
                    operation=_OPERATION,
                    remedy=f"send the header {settings.tenant_header}",
                )
        else:
            self.check(tenant)
        return Sender(tenant, dataset)

    def check(self, tenant: str) -> None:
        """Raise unless this can be a tenant's name, and is that of one that is known or may be new."""
        check_tenant(tenant)
        if not (self._settings.creates_tenants or tenant in self._known or self._exists(tenant)):
            raise TenantRefusedError(
                f"there is no tenant {tenant!r}",
                operation=_OPERATION,
                remedy="name it in telemetry.tenants, or set telemetry.auto_create_tenants",
            )

    def _owner(self, authorization: str) -> str:
        scheme, _, token = authorization.partition(" ")
        owner = self._by_token.get(self._digest(token.strip())) if scheme.lower() == _BEARER else None
        if owner is None:
            raise UnauthenticatedError(
                "a token is needed, and this is none" if authorization else "a token is needed",
                operation=_OPERATION,
                remedy="send the header authorization: Bearer TOKEN",
            )
        return owner

    def _digest(self, token: str) -> bytes:
        return blake2b(token.encode(errors="surrogateescape"), key=self._key).digest()


def check_tenant(name: str) -> str:
    """`name` itself, if it can be a tenant's."""
    check_part(name, what="tenant")
    if name.startswith("_") or name.lower() in RESERVED:
        raise InvalidNameError(f"{name!r} is a reserved name", operation=_OPERATION, remedy="choose another one")
    return name


def check_dataset(name: str) -> str:
    """`name` itself, if it can be a dataset's: a part of a topic's name."""
    check_part(name, what="dataset")
    if len(name) > _MAX_DATASET_LENGTH:
        raise InvalidNameError(
            f"a dataset's name has {len(name)} characters",
            operation=_OPERATION,
            remedy=f"use up to {_MAX_DATASET_LENGTH}",
        )
    return name
