"""`EtcdMetadataStore`: the metadata store on etcd."""

import threading
from collections.abc import Sequence

import grpc

from icestream.metadata.etcd import messages as m
from icestream.metadata.etcd.client import Calls, EtcdClient, LostResponseError, Metadata, is_future, is_reply_too_large
from icestream.metadata.etcd.keyspace import Keyspace
from icestream.metadata.etcd.leases import EtcdLeases
from icestream.metadata.etcd.options import EtcdOptions
from icestream.metadata.etcd.transactions import GuardedTransactions
from icestream.metadata.etcd.watch import EtcdWatch, WatchStream
from icestream.metadata.store import (
    DEFAULT_PAGE_ENTRIES,
    MAX_PAGE_BYTES,
    MAX_TRANSACTION_OPERATIONS,
    MAX_VALUE_BYTES,
    BaseStore,
    CompactedError,
    Condition,
    Entries,
    Entry,
    Lease,
    Operation,
    OutcomeUnknownError,
    TransactionResult,
    check_key,
    check_page,
    check_prefix,
    check_transaction,
    check_ttl,
)
from icestream.model.errors import InvalidRequestError

# Pages of a listing. They are bounded by bytes, but etcd bounds replies by entries only. So a page is read in several
# steps at one revision: the first is small enough for the largest values, the next ones follow the size of the values
# seen so far. If a reply is too large, gRPC refuses it, and the step is halved.

_FIRST_STEP_ENTRIES = MAX_PAGE_BYTES // MAX_VALUE_BYTES
_STEP_GROWTH = 8


def read_page(client: EtcdClient, keyspace: Keyspace, prefix: str, start_after: str | None, limit: int) -> list[Entry]:
    while True:
        try:
            return _read_page(client, keyspace, prefix, start_after, limit)
        except CompactedError:
            continue  # the revision was dropped between two steps: start at a newer one


def _read_page(client: EtcdClient, keyspace: Keyspace, prefix: str, start_after: str | None, limit: int) -> list[Entry]:
    key, end = keyspace.range_of(prefix)
    if start_after is not None:
        key = max(key, keyspace.encode(start_after) + b"\0")
    page: list[Entry] = []
    size = revision = 0
    step = min(limit, _FIRST_STEP_ENTRIES)
    while key < end and len(page) < limit:
        response = _range(client, m.RangeRequest(key=key, range_end=end, limit=step, revision=revision), prefix)
        if response is None:
            step = max(1, step // 2)
            continue
        revision = revision or response.header.revision
        for found in response.kvs:
            size += len(found.value)
            if page and size > MAX_PAGE_BYTES:
                return page
            page.append(keyspace.entry(found))
        if not response.more:
            break
        key = response.kvs[-1].key + b"\0"
        usual_bytes = size // len(page) + 1
        fitting = max(1, (MAX_PAGE_BYTES - size) // usual_bytes)
        step = min(limit - len(page), step * _STEP_GROWTH, fitting)
    return page


def _range(client: EtcdClient, request: m.RangeRequest, place: str) -> m.RangeResponse | None:
    """Return the response, or None if it is too large."""

    def send(calls: Calls, timeout: float, metadata: Metadata) -> m.RangeResponse | None:
        try:
            return calls.range(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            if request.limit > 1 and is_reply_too_large(error):
                return None
            raise

    return client.call("list", send, place=place)


class EtcdMetadataStore(BaseStore):
    """Connects when it is first used, so it can be opened while etcd is unreachable."""

    def __init__(self, options: EtcdOptions) -> None:
        self._client = EtcdClient(options)
        self._keyspace = Keyspace(options.prefix)
        self._leases = EtcdLeases(self._client)
        self._guarded = GuardedTransactions(self._client, self._keyspace, self._leases)
        self._lock = threading.Lock()
        self._watches: set[EtcdWatch] = set()

    # Reading

    def get(self, key: str) -> Entry | None:
        check_key(key, operation="get")
        found = self._range(m.RangeRequest(key=self._keyspace.encode(key)), "get", key).kvs
        return self._keyspace.entry(found[0]) if found else None

    def list(self, prefix: str, *, limit: int = DEFAULT_PAGE_ENTRIES, start_after: str | None = None) -> Entries:
        check_prefix(prefix, operation="list")
        check_page(limit, start_after, operation="list")
        return read_page(self._client, self._keyspace, prefix, start_after, limit)

    def revision(self) -> int:
        request = m.RangeRequest(key=self._keyspace.encode("/"), keys_only=True)
        return self._range(request, "revision", "").header.revision

    def watch(self, prefix: str, start_revision: int | None = None) -> EtcdWatch:
        check_prefix(prefix, operation="watch")
        if start_revision is None:
            start_revision = self.revision() + 1
        elif start_revision < 1:
            raise InvalidRequestError(f"revisions begin at 1, not {start_revision}", operation="watch", place=prefix)
        else:
            self._check_kept(prefix, start_revision)
        with self._lock:
            self._client.check_open("watch")
            stream = WatchStream(self._client, self._keyspace, prefix, start_revision)
            watch = EtcdWatch(stream, self._watches.discard)
            self._watches.add(watch)
        stream.start()
        return watch

    def _check_kept(self, prefix: str, start_revision: int) -> None:
        # The state before the first change is kept just as long as the change is.
        key = self._keyspace.encode("/")
        request = m.RangeRequest(key=key, keys_only=True, revision=max(1, start_revision - 1))

        def send(calls: Calls, timeout: float, metadata: Metadata) -> None:
            try:
                calls.range(request, timeout=timeout, metadata=metadata)
            except grpc.RpcError as error:
                if not is_future(error):
                    raise

        self._client.call("watch", send, place=prefix)

    def _range(self, request: m.RangeRequest, operation: str, place: str) -> m.RangeResponse:
        return self._client.call(
            operation,
            lambda calls, timeout, metadata: calls.range(request, timeout=timeout, metadata=metadata),
            place=place,
        )

    # Changing

    def transaction(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> TransactionResult:
        check_transaction(conditions, operations, operation="transaction")
        self._client.check_open("transaction")
        compare = [self._keyspace.compare(condition) for condition in conditions]
        success = [self._keyspace.request(operation) for operation in operations]
        has_room = max(len(compare), len(success)) < MAX_TRANSACTION_OPERATIONS
        if compare and success and has_room:
            return self._guarded.transaction(compare, success)
        return self._plain_transaction(m.TxnRequest(compare=compare, success=success))

    def _plain_transaction(self, request: m.TxnRequest) -> TransactionResult:
        """Run a transaction that may be repeated, or that has no room for a guard."""
        try:
            response = self._client.call(
                "transaction",
                lambda calls, timeout, metadata: calls.txn(request, timeout=timeout, metadata=metadata),
                repeatable=not (request.compare and request.success),
            )
        except LostResponseError as lost:
            raise OutcomeUnknownError(
                f"the response of etcd was lost ({lost})",
                operation="transaction",
                place=self._client.place,
                remedy="read the keys that it was to change, and decide again",
            ) from lost
        return TransactionResult(response.succeeded, response.header.revision)

    def lease(self, ttl_seconds: float) -> Lease:
        check_ttl(ttl_seconds, operation="lease")
        return Lease(*self._leases.grant(ttl_seconds), self._leases)

    def close(self) -> None:
        with self._lock:
            if self._client.is_closed:
                return
            self._client.refuse_calls()
            watches = list(self._watches)
        for watch in watches:
            watch.close()
        self._guarded.close()
        self._client.close()
