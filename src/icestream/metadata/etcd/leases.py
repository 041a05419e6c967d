"""Leases of etcd: the store's `LeaseKeeper`."""

import contextlib
import math

import grpc

from icestream.metadata.etcd import messages as m
from icestream.metadata.etcd.client import Calls, Deadline, EtcdClient, Metadata, StreamEndedError
from icestream.metadata.store import LeaseExpiredError

_LAST_CALL_SECONDS = 1.0


class EtcdLeases:
    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    def grant(self, ttl_seconds: float, deadline: Deadline | None = None) -> tuple[int, float]:
        """Grant a lease. Return its id and its time in seconds. If the response is lost, the lease ends by itself."""
        request = m.LeaseGrantRequest(TTL=math.ceil(ttl_seconds))
        response = self._client.call(
            "lease",
            lambda calls, timeout, metadata: calls.lease_grant(request, timeout=timeout, metadata=metadata),
            deadline=deadline,
        )
        return response.ID, float(response.TTL)

    def renew(self, lease_id: int, deadline: Deadline | None = None) -> None:
        def send(calls: Calls, timeout: float, metadata: Metadata) -> m.LeaseKeepAliveResponse:
            requests = iter([m.LeaseKeepAliveRequest(ID=lease_id)])
            replies = calls.lease_keep_alive(requests, timeout=timeout, metadata=metadata)
            for response in replies:
                replies.cancel()
                return response
            raise StreamEndedError("etcd ended the call without a response")

        response = self._client.call("keep lease alive", send, deadline=deadline)
        if response.TTL <= 0:
            raise LeaseExpiredError(
                f"lease {lease_id} has ended",
                operation="keep lease alive",
                place=self._client.place,
                remedy="take a new lease",
            )

    def is_alive(self, lease_id: int) -> bool:
        return self._time_to_live(lease_id) >= 0

    # For leases (`LeaseKeeper`)

    def renew_lease(self, lease_id: int, ttl_seconds: float) -> None:
        del ttl_seconds  # etcd has it
        self.renew(lease_id)

    def revoke_lease(self, lease_id: int) -> None:
        request = m.LeaseRevokeRequest(ID=lease_id)
        with contextlib.suppress(LeaseExpiredError):
            self._client.call(
                "revoke lease",
                lambda calls, timeout, metadata: calls.lease_revoke(request, timeout=timeout, metadata=metadata),
            )

    def lease_remaining_seconds(self, lease_id: int) -> float:
        """Return the remaining time in whole seconds, rounded down."""
        return float(max(0, self._time_to_live(lease_id)))

    def try_to_revoke(self, lease_id: int) -> None:
        """Try once to revoke a lease, for a short time, while the client closes."""
        calls = self._client.endpoints.preferred().calls
        with contextlib.suppress(grpc.RpcError, ValueError):
            metadata = self._client.tokens.metadata(calls, _LAST_CALL_SECONDS)
            calls.lease_revoke(m.LeaseRevokeRequest(ID=lease_id), timeout=_LAST_CALL_SECONDS, metadata=metadata)

    def _time_to_live(self, lease_id: int) -> int:
        """Return the remaining seconds; negative if the lease has ended."""
        request = m.LeaseTimeToLiveRequest(ID=lease_id)
        response = self._client.call(
            "lease",
            lambda calls, timeout, metadata: calls.lease_time_to_live(request, timeout=timeout, metadata=metadata),
        )
        return response.TTL
