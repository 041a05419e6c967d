"""Pages of a listing, bounded by bytes though etcd bounds them by entries only.

A page is read in several steps at one revision: the first is small enough for the largest values, the next ones are as
large as the values seen so far let expect. A reply that is too large all the same is not received, and asked for in
smaller steps.
"""

import grpc

from icestream.metadata.etcd import messages as m
from icestream.metadata.etcd.calls import Calls, Metadata
from icestream.metadata.etcd.client import EtcdClient
from icestream.metadata.etcd.errors import is_reply_too_large
from icestream.metadata.etcd.keyspace import Keyspace
from icestream.metadata.limits import MAX_PAGE_BYTES, MAX_VALUE_BYTES
from icestream.metadata.store import CompactedError, Entry

_FIRST_STEP_ENTRIES = MAX_PAGE_BYTES // MAX_VALUE_BYTES
_STEP_GROWTH = 8


def read_page(client: EtcdClient, keyspace: Keyspace, prefix: str, start_after: str | None, limit: int) -> list[Entry]:
    while True:
        try:
            return _read_page(client, keyspace, prefix, start_after, limit)
        except CompactedError:
            continue  # between two steps the revision was dropped: begin at a newer one


def _read_page(client: EtcdClient, keyspace: Keyspace, prefix: str, start_after: str | None, limit: int) -> list[Entry]:
    key, end = keyspace.range_of(prefix)
    if start_after is not None:
        key = max(key, keyspace.encode(start_after) + b"\0")
    page: list[Entry] = []
    size = revision = 0
    step = min(limit, _FIRST_STEP_ENTRIES)
    while key < end and len(page) < limit:
        answer = _range(client, m.RangeRequest(key=key, range_end=end, limit=step, revision=revision), prefix)
        if answer is None:
            step = max(1, step // 2)
            continue
        revision = revision or answer.header.revision
        for found in answer.kvs:
            size += len(found.value)
            if page and size > MAX_PAGE_BYTES:
                return page
            page.append(keyspace.entry(found))
        if not answer.more:
            break
        key = answer.kvs[-1].key + b"\0"
        usual_bytes = size // len(page) + 1
        fitting = max(1, (MAX_PAGE_BYTES - size) // usual_bytes)
        step = min(limit - len(page), step * _STEP_GROWTH, fitting)
    return page


def _range(client: EtcdClient, request: m.RangeRequest, place: str) -> m.RangeResponse | None:
    """None: the reply is too large."""

    def send(calls: Calls, timeout: float, metadata: Metadata) -> m.RangeResponse | None:
        try:
            return calls.range(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            if request.limit > 1 and is_reply_too_large(error):
                return None
            raise

    return client.call("list", send, place=place)
