"""A lease: keys written under it vanish when it is not kept alive.

A lease tells others that its holder is probably gone. It is no lock: a paused holder does not notice that its lease
ended, so whatever must not happen twice is guarded by a compare-and-swap or an epoch, never by a lease alone.
"""

from dataclasses import dataclass, field
from typing import Protocol

from icestream.model.errors import IcestreamError


class LeaseExpiredError(IcestreamError):
    """The lease ended, or was revoked, and its keys with it."""

    code = "lease_expired"


class LeaseKeeper(Protocol):
    """What a store does for its leases."""

    def renew_lease(self, lease_id: int, ttl_seconds: float) -> None: ...

    def revoke_lease(self, lease_id: int) -> None: ...

    def lease_remaining_seconds(self, lease_id: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Lease:
    id: int
    ttl_seconds: float
    keeper: LeaseKeeper = field(repr=False, compare=False)

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends; 0.0 when it has."""
        return self.keeper.lease_remaining_seconds(self.id)

    def keep_alive(self) -> None:
        """Begin the full time anew, or raise LeaseExpiredError: an ended lease never comes back."""
        self.keeper.renew_lease(self.id, self.ttl_seconds)

    def revoke(self) -> None:
        """End the lease and delete its keys now. Does nothing when it has ended already."""
        self.keeper.revoke_lease(self.id)
