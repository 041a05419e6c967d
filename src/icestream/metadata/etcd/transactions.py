"""Transactions that happen once or not at all, and say which, though answers get lost.

Each goes with a *ticket*: a key of ours at a revision we know. The transaction has the further condition that the
ticket is unused, and uses it in the same change. When the answer is lost:

1. the ticket is voided, if it is still unused. *The transaction, wherever it may hang, can no longer happen.*
2. If it was void already, by an attempt at step 1 whose answer was lost, the same holds: send the transaction anew.
3. Else the transaction has used it: it happened, at the ticket's revision.

Tickets are used again and again, by one transaction at a time. They are under a lease, so they vanish some time after
their client.
"""

import itertools
import threading
import time
import uuid
from dataclasses import dataclass

from icestream.metadata.etcd import messages as m
from icestream.metadata.etcd.client import Deadline, EtcdClient, LostAnswerError
from icestream.metadata.etcd.keyspace import Keyspace
from icestream.metadata.etcd.leases import EtcdLeases
from icestream.metadata.store import LeaseExpiredError, OutcomeUnknownError, TransactionResult
from icestream.model.errors import IcestreamError, UnavailableError

FOLDER = "icestream-tickets/"
_LEASE_SECONDS = 3600
_VOID = b"void"


@dataclass
class _Ticket:
    key: bytes
    lease: int
    revision: int = 0

    def unused(self) -> m.Compare:
        return m.Compare(key=self.key, target=m.Compare.MOD, result=m.Compare.EQUAL, mod_revision=self.revision)

    def use(self, value: bytes) -> m.RequestOp:
        return m.RequestOp(request_put=m.PutRequest(key=self.key, value=value, lease=self.lease))

    def read(self) -> m.RequestOp:
        return m.RequestOp(request_range=m.RangeRequest(key=self.key))


class Tickets:
    """Thread-safe."""

    def __init__(self, client: EtcdClient, keyspace: Keyspace, leases: EtcdLeases) -> None:
        self._client = client
        self._keyspace = keyspace
        self._leases = leases
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._unused: list[_Ticket] = []
        self._lease: int | None = None
        self._renew_at = 0.0

    def transaction(self, conditions: list[m.Compare], operations: list[m.RequestOp]) -> TransactionResult:
        deadline = self._client.deadline()
        while True:
            ticket = self._take(deadline)
            stamp = b"%d" % next(self._numbers)
            request = m.TxnRequest(
                compare=[*conditions, ticket.unused()],
                success=[*operations, ticket.use(stamp)],
                failure=[ticket.read()],
            )
            try:
                result = self._send(request, ticket, deadline)
            except LostAnswerError as lost:
                result = self._find_out(ticket, stamp, deadline, lost)
            except LeaseExpiredError:
                if self._leases.is_alive(ticket.lease):
                    self._give_back(ticket)
                    raise
                self._forget(ticket)
                continue
            except IcestreamError:
                self._give_back(ticket)
                raise
            self._give_back(ticket)
            if result is not None:
                return result

    def close(self) -> None:
        """Let the tickets go now; without etcd they go later."""
        if self._lease is not None:
            self._leases.try_to_revoke(self._lease)

    def _send(self, request: m.TxnRequest, ticket: _Ticket, deadline: Deadline) -> TransactionResult | None:
        """None: the ticket is gone, and nothing was done."""
        answer = self._client.call(
            "transaction",
            lambda calls, timeout, metadata: calls.txn(request, timeout=timeout, metadata=metadata),
            deadline=deadline,
            repeatable=False,
        )
        if answer.succeeded:
            ticket.revision = answer.header.revision
        elif _found(answer)[0] != ticket.revision:
            self._forget(ticket)
            return None
        return TransactionResult(answer.succeeded, answer.header.revision)

    def _find_out(
        self, ticket: _Ticket, stamp: bytes, deadline: Deadline, lost: LostAnswerError
    ) -> TransactionResult | None:
        """What became of a transaction; None: it did not happen and cannot any more."""
        request = m.TxnRequest(compare=[ticket.unused()], success=[ticket.use(_VOID)], failure=[ticket.read()])
        try:
            answer = self._client.call(
                "transaction",
                lambda calls, timeout, metadata: calls.txn(request, timeout=timeout, metadata=metadata),
                deadline=deadline,
            )
        except (UnavailableError, LeaseExpiredError) as error:
            raise _unknown(lost, self._client.place) from error
        if answer.succeeded:
            ticket.revision = answer.header.revision
            return None
        ticket.revision, value = _found(answer)
        if value is None:
            self._forget(ticket)
            raise _unknown(lost, self._client.place)
        return TransactionResult(succeeded=True, revision=ticket.revision) if value == stamp else None

    def _take(self, deadline: Deadline) -> _Ticket:
        with self._lock:
            lease = self._living_lease(deadline)
            if self._unused:
                return self._unused.pop()
            return _Ticket(self._keyspace.private(FOLDER + uuid.uuid4().hex), lease)

    def _give_back(self, ticket: _Ticket) -> None:
        with self._lock:
            if ticket.lease == self._lease:
                self._unused.append(ticket)

    def _forget(self, ticket: _Ticket) -> None:
        """Its lease has ended, while this machine slept or etcd was away, so all tickets are gone."""
        with self._lock:
            if ticket.lease == self._lease:
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


def _found(answer: m.TxnResponse) -> tuple[int, bytes | None]:
    """The ticket as a transaction that did not succeed read it; revision 0 when it is not there."""
    kvs = answer.responses[-1].response_range.kvs
    return (kvs[0].mod_revision, kvs[0].value) if kvs else (0, None)


def _unknown(lost: LostAnswerError, place: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"the answer of etcd was lost ({lost}), and it could not be asked what became of the transaction",
        operation="transaction",
        place=place,
        remedy="read what it was to change, and decide anew",
    )
