"""The leases of etcd, as the store's `LeaseKeeper`."""

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
        """A lease and how long it lasts. One that was granted without our hearing of it ends by itself."""
        request = m.LeaseGrantRequest(TTL=math.ceil(ttl_seconds))
        answer = self._client.call(
            "lease",
            lambda calls, timeout, metadata: calls.lease_grant(request, timeout=timeout, metadata=metadata),
            deadline=deadline,
        )
        return answer.ID, float(answer.TTL)

    def renew(self, lease_id: int, deadline: Deadline | None = None) -> None:
        def send(calls: Calls, timeout: float, metadata: Metadata) -> m.LeaseKeepAliveResponse:
            requests = iter([m.LeaseKeepAliveRequest(ID=lease_id)])
            replies = calls.lease_keep_alive(requests, timeout=timeout, metadata=metadata)
            for answer in replies:
                replies.cancel()
                return answer
            raise StreamEndedError("etcd ended the call without an answer")

        answer = self._client.call("keep lease alive", send, deadline=deadline)
        if answer.TTL <= 0:
            raise LeaseExpiredError(
                f"lease {lease_id} has ended",
                operation="keep lease alive",
                place=self._client.place,
                remedy="take a new lease",
            )

    def is_alive(self, lease_id: int) -> bool:
        return self._time_to_live(lease_id) >= 0

    # --- what a lease needs (`LeaseKeeper`)

    def renew_lease(self, lease_id: int, ttl_seconds: float) -> None:
        del ttl_seconds  # etcd knows it
        self.renew(lease_id)

    def revoke_lease(self, lease_id: int) -> None:
        request = m.LeaseRevokeRequest(ID=lease_id)
        with contextlib.suppress(LeaseExpiredError):
            self._client.call(
                "revoke lease",
                lambda calls, timeout, metadata: calls.lease_revoke(request, timeout=timeout, metadata=metadata),
            )

    def lease_remaining_seconds(self, lease_id: int) -> float:
        """In whole seconds, rounded down."""
        return float(max(0, self._time_to_live(lease_id)))

    def try_to_revoke(self, lease_id: int) -> None:
        """Once, while the client closes, and for a moment only."""
        calls = self._client.endpoints.preferred().calls
        with contextlib.suppress(grpc.RpcError, ValueError):
            metadata = self._client.tokens.metadata(calls, _LAST_CALL_SECONDS)
            calls.lease_revoke(m.LeaseRevokeRequest(ID=lease_id), timeout=_LAST_CALL_SECONDS, metadata=metadata)

    def _time_to_live(self, lease_id: int) -> int:
        """Negative for a lease that has ended."""
        request = m.LeaseTimeToLiveRequest(ID=lease_id)
        answer = self._client.call(
            "lease",
            lambda calls, timeout, metadata: calls.lease_time_to_live(request, timeout=timeout, metadata=metadata),
        )
        return answer.TTL
