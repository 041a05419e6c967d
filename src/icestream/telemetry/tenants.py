"""Whose telemetry it is: by a token where tokens are given out, by a header where not.

A tenant is a namespace, and its name is checked as one before anything is looked up or made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from icestream.config import TelemetrySettings
from icestream.config.reserved import RESERVED_NAMESPACES
from icestream.model.callers import Callers
from icestream.model.errors import InvalidNameError
from icestream.model.names import MAX_PART_LENGTH, check_part
from icestream.telemetry.errors import TenantRefusedError
from icestream.telemetry.signals import Signal

_MAX_DATASET_LENGTH = MAX_PART_LENGTH - 1 - max(map(len, Signal))
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
    def __init__(self, settings: TelemetrySettings, callers: Callers, exists: Callable[[str], bool]) -> None:
        """`exists` tells whether a tenant has topics already."""
        self._settings = settings
        self._callers = callers
        self._exists = exists
        create = settings.auto_create_tenants
        self._creates = callers.are_all if create is None else create
        given = [settings.default_tenant] if settings.default_tenant is not None else []
        named = {*settings.named_tenants, *given}
        for tenant in named:
            check_tenant(tenant)
        self._known = named | callers.namespaces

    def identify(self, headers: Mapping[str, str]) -> Sender:
        """Who sends a request, from its headers (in small letters); raises where that is nobody who may."""
        settings = self._settings
        owner = self._callers.identify(headers.get("authorization"), operation=_OPERATION).namespace
        named = headers.get(settings.tenant_header)
        dataset = headers.get(settings.dataset_header)
        if dataset is not None:
            check_dataset(dataset)
        if owner is not None:
            if named not in (None, owner):
                raise TenantRefusedError(
                    "the token is another tenant's",
                    operation=_OPERATION,
                    remedy=f"leave the header {settings.tenant_header} out",
                )
            return Sender(check_tenant(owner), dataset, any_tenant=False)
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

    def is_known(self, tenant: str) -> bool:
        """Whether somebody has named it, or it has topics."""
        return tenant in self._known or self._exists(tenant)

    def check(self, tenant: str) -> None:
        """Raise unless this can be a tenant's name, and is that of one that is known or may be new."""
        check_tenant(tenant)
        if not (self._creates or self.is_known(tenant)):
            raise TenantRefusedError(
                f"there is no tenant {tenant!r}",
                operation=_OPERATION,
                remedy="name it in telemetry.tenants, or set telemetry.auto_create_tenants",
            )


def check_tenant(name: str) -> str:
    """`name` itself, if it can be a tenant's."""
    check_part(name, what="tenant")
    if name.startswith("_") or name.lower() in RESERVED_NAMESPACES:
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
