"""A watch on etcd: a thread reads the stream, one message ahead of the reader, and reconnects to other members.

The thread takes the next message when the last one was returned. Until then messages wait in the connection's window
and, when that is full, in etcd's history: nothing here grows. When the stream breaks, it is opened again after the last
complete change.
"""

import threading
from collections import deque
from collections.abc import Callable

import grpc

from icestream.metadata.etcd import messages as m
from icestream.metadata.etcd.client import (
    AccessDeniedError,
    Endpoint,
    EtcdClient,
    Failure,
    Metadata,
    StreamEndedError,
    error_for,
    failure_of,
)
from icestream.metadata.etcd.keyspace import Keyspace
from icestream.metadata.store import CompactedError, Event
from icestream.metadata.watch import HistoryWatch
from icestream.model.errors import ClosedError, IcestreamError

_TOKEN_SECONDS = 5.0


class WatchStream:
    """The stream of changes under a prefix, as a `ChangeFeed`."""

    def __init__(self, client: EtcdClient, keyspace: Keyspace, prefix: str, start_revision: int) -> None:
        self._client = client
        self._keyspace = keyspace
        self.prefix = prefix
        self.start_revision = start_revision
        self._next_revision = start_revision
        self._arrived: deque[tuple[Event, ...]] = deque()
        self._incomplete: list[Event] = []
        self._error: IcestreamError | None = None
        self._is_refused = False
        self._cancel: Callable[[], object] = lambda: None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"etcd-watch {prefix}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._error = ClosedError("the watch is closed", operation="watch", place=self.prefix)
            self._arrived.clear()
            self._changed.notify_all()
            self._cancel()

    # For the reader

    @property
    def changed(self) -> threading.Condition:
        return self._changed

    def poll_seconds(self) -> float | None:
        return None

    def next_change(self, prefix: str, start_revision: int) -> tuple[tuple[Event, ...], int]:
        del prefix
        if self._arrived:
            events = self._arrived.popleft()
            if not self._arrived:
                self._changed.notify_all()
            return events, events[0].revision + 1
        if self._error is not None:
            raise self._error
        return (), max(start_revision, self._next_revision)

    # The thread

    def _run(self) -> None:
        failures = 0
        while self._error is None and not self._client.is_closed:
            endpoint = self._client.endpoints.preferred()
            metadata: Metadata | None = None
            reached = self._next_revision
            try:
                metadata = self._client.tokens.metadata(endpoint.calls, _TOKEN_SECONDS)
                self._follow(endpoint, metadata)
            except ValueError:  # how gRPC refuses a call on a closed channel
                continue
            except (grpc.RpcError, IcestreamError) as error:
                self._judge(error, metadata)
            self._client.endpoints.failed(endpoint)
            failures = 1 if self._next_revision > reached else failures + 1
            self._client.pause(failures)

    def _judge(self, error: grpc.RpcError | IcestreamError, metadata: Metadata | None) -> None:
        """Renew the token, fail, or return to try again, as the error requires."""
        if isinstance(error, grpc.RpcError):
            failure = failure_of(error)
            if failure in (Failure.NOT_DONE, Failure.LOST):
                return
            is_about_token = failure is Failure.BAD_TOKEN
            error = error_for(error, operation="watch", place=self.prefix)
        else:
            is_about_token = isinstance(error, AccessDeniedError)  # some versions report an unknown token so
        if is_about_token and metadata is not None and self._client.tokens.can_renew and not self._is_refused:
            self._is_refused = True
            self._client.tokens.refused(metadata)
        else:
            self._fail(error)

    def _follow(self, endpoint: Endpoint, metadata: Metadata) -> None:
        first, end = self._keyspace.range_of(self.prefix)
        create = m.WatchCreateRequest(
            key=first, range_end=end, start_revision=self._next_revision, progress_notify=True, fragment=True
        )
        with self._changed:
            if self._error is not None:
                return
            self._incomplete.clear()
            replies = endpoint.calls.watch(iter([m.WatchRequest(create_request=create)]), metadata=metadata)
            self._cancel = replies.cancel
        try:
            for response in replies:
                self._check(response)
                self._is_refused = False
                self._take_in(response)
        finally:
            replies.cancel()

    def _check(self, response: m.WatchResponse) -> None:
        if response.compact_revision:
            raise CompactedError(
                f"changes from revision {self._next_revision} on are no longer kept,"
                f" only those from {response.compact_revision} on",
                operation="watch",
                place=self.prefix,
                remedy="list the prefix again, then watch from the revision taken before listing",
            )
        if response.canceled and "permission denied" in response.cancel_reason:
            raise AccessDeniedError(
                response.cancel_reason, operation="watch", place=self.prefix, remedy="check the etcd user's roles"
            )
        if response.canceled:
            raise StreamEndedError(response.cancel_reason)

    def _take_in(self, response: m.WatchResponse) -> None:
        """Pass complete changes to the reader, and wait until it has taken them."""
        with self._changed:
            for found in response.events:
                event = self._keyspace.event(found)
                if event.revision < self._next_revision:
                    continue
                if self._incomplete and self._incomplete[0].revision != event.revision:
                    self._complete()
                self._incomplete.append(event)
            if self._incomplete and not response.fragment:
                self._complete()
            if _is_progress(response):
                self._next_revision = max(self._next_revision, response.header.revision + 1)
            if self._arrived:
                self._changed.notify_all()
            while self._arrived and self._error is None:
                self._changed.wait()

    def _complete(self) -> None:
        # The changes of one revision are one transaction, and are returned together.
        if self._error is None:
            self._arrived.append(tuple(self._incomplete))
        self._next_revision = self._incomplete[0].revision + 1
        self._incomplete.clear()

    def _fail(self, error: IcestreamError) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()


class EtcdWatch(HistoryWatch):
    """A watch whose history is the stream."""

    def __init__(self, stream: WatchStream, on_close: Callable[["EtcdWatch"], None]) -> None:
        super().__init__(stream, stream.prefix, stream.start_revision)
        self._stream = stream
        self._on_close = on_close

    def close(self) -> None:
        super().close()
        self._stream.close()
        self._on_close(self)


def _is_progress(response: m.WatchResponse) -> bool:
    """Return whether etcd reports that all changes up to this revision were sent."""
    return not response.events and not response.created and not response.canceled and not response.fragment
