"""Transactions that happen once or not at all, and say which, also if responses are lost.

Each transaction uses a *guard*: a key of this client at a known revision. The transaction has the additional condition
that the guard is unused, and changes the guard. If the response is lost:

1. Void the guard if it is unused. *The transaction, wherever it is delayed, can no longer happen.*
2. If the guard is void, by an earlier attempt at step 1 whose response was lost, the same holds: send the transaction
   again.
3. Otherwise the transaction has changed the guard. It happened, at the guard's revision.

Guards are reused, by one transaction at a time. They are under a lease, so etcd deletes them some time after their
client has gone.
"""

import itertools
import threading
import time
import uuid
from dataclasses import dataclass

from icestream.metadata.etcd import messages as m
from icestream.metadata.etcd.client import Deadline, EtcdClient, LostResponseError
from icestream.metadata.etcd.keyspace import Keyspace
from icestream.metadata.etcd.leases import EtcdLeases
from icestream.metadata.store import LeaseExpiredError, OutcomeUnknownError, TransactionResult
from icestream.model.errors import IcestreamError, UnavailableError

FOLDER = "icestream-guards/"
_LEASE_SECONDS = 3600
_VOID = b"void"


@dataclass
class _Guard:
    key: bytes
    lease: int
    revision: int = 0

    def unused(self) -> m.Compare:
        return m.Compare(key=self.key, target=m.Compare.MOD, result=m.Compare.EQUAL, mod_revision=self.revision)

    def use(self, value: bytes) -> m.RequestOp:
        return m.RequestOp(request_put=m.PutRequest(key=self.key, value=value, lease=self.lease))

    def read(self) -> m.RequestOp:
        return m.RequestOp(request_range=m.RangeRequest(key=self.key))


class GuardedTransactions:
    """Thread-safe."""

    def __init__(self, client: EtcdClient, keyspace: Keyspace, leases: EtcdLeases) -> None:
        self._client = client
        self._keyspace = keyspace
        self._leases = leases
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._unused: list[_Guard] = []
        self._lease: int | None = None
        self._renew_at = 0.0

    def transaction(self, conditions: list[m.Compare], operations: list[m.RequestOp]) -> TransactionResult:
        deadline = self._client.deadline()
        while True:
            guard = self._take(deadline)
            stamp = b"%d" % next(self._numbers)
            request = m.TxnRequest(
                compare=[*conditions, guard.unused()],
                success=[*operations, guard.use(stamp)],
                failure=[guard.read()],
            )
            try:
                result = self._send(request, guard, deadline)
            except LostResponseError as lost:
                result = self._find_out(guard, stamp, deadline, lost)
            except LeaseExpiredError:
                if self._leases.is_alive(guard.lease):
                    self._give_back(guard)
                    raise
                self._forget(guard)
                continue
            except IcestreamError:
                self._give_back(guard)
                raise
            self._give_back(guard)
            if result is not None:
                return result

    def close(self) -> None:
        """Delete the guards now. If etcd is unreachable, their lease ends later."""
        if self._lease is not None:
            self._leases.try_to_revoke(self._lease)

    def _send(self, request: m.TxnRequest, guard: _Guard, deadline: Deadline) -> TransactionResult | None:
        """Send a transaction. Return None if the guard is gone, and nothing was done."""
        response = self._client.call(
            "transaction",
            lambda calls, timeout, metadata: calls.txn(request, timeout=timeout, metadata=metadata),
            deadline=deadline,
            repeatable=False,
        )
        if response.succeeded:
            guard.revision = response.header.revision
        elif _found(response)[0] != guard.revision:
            self._forget(guard)
            return None
        return TransactionResult(response.succeeded, response.header.revision)

    def _find_out(
        self, guard: _Guard, stamp: bytes, deadline: Deadline, lost: LostResponseError
    ) -> TransactionResult | None:
        """Find out whether a transaction happened. Return None if it did not, and no longer can."""
        request = m.TxnRequest(compare=[guard.unused()], success=[guard.use(_VOID)], failure=[guard.read()])
        try:
            response = self._client.call(
                "transaction",
                lambda calls, timeout, metadata: calls.txn(request, timeout=timeout, metadata=metadata),
                deadline=deadline,
            )
        except (UnavailableError, LeaseExpiredError) as error:
            raise _unknown(lost, self._client.place) from error
        if response.succeeded:
            guard.revision = response.header.revision
            return None
        guard.revision, value = _found(response)
        if value is None:
            self._forget(guard)
            raise _unknown(lost, self._client.place)
        return TransactionResult(succeeded=True, revision=guard.revision) if value == stamp else None

    def _take(self, deadline: Deadline) -> _Guard:
        with self._lock:
            lease = self._living_lease(deadline)
            if self._unused:
                return self._unused.pop()
            return _Guard(self._keyspace.private(FOLDER + uuid.uuid4().hex), lease)

    def _give_back(self, guard: _Guard) -> None:
        with self._lock:
            if guard.lease == self._lease:
                self._unused.append(guard)

    def _forget(self, guard: _Guard) -> None:
        """Drop all guards: their lease has ended, while this machine slept or etcd was unreachable."""
        with self._lock:
            if guard.lease == self._lease:
                self._lease = None

    def _living_lease(self, deadline: Deadline) -> int:
        now = time.monotonic()
        if self._lease is not None and now >= self._renew_at:
            try:
                self._leases.renew(self._lease, deadline)
                self._renew_at = now + _LEASE_SECONDS / 4
            except LeaseExpiredError:
                self._lease = None
        if self._lease is None:
            self._unused.clear()
            self._lease, _ = self._leases.grant(_LEASE_SECONDS, deadline)
            self._renew_at = now + _LEASE_SECONDS / 4
        return self._lease


def _found(response: m.TxnResponse) -> tuple[int, bytes | None]:
    """Return the guard's revision and value from a failed transaction; revision 0 if it does not exist."""
    kvs = response.responses[-1].response_range.kvs
    return (kvs[0].mod_revision, kvs[0].value) if kvs else (0, None)


def _unknown(lost: LostResponseError, place: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"the response of etcd was lost ({lost}), and it is unknown whether the transaction happened",
        operation="transaction",
        place=place,
        remedy="read the keys that it was to change, and decide again",
    )
