"""The token that etcd gives for a user and password: asked for when first needed, and anew when it has ended."""

import threading

import grpc

from icestream.metadata.etcd.calls import Calls, Metadata
from icestream.metadata.etcd.errors import text_of
from icestream.metadata.etcd.messages import AuthenticateRequest
from icestream.metadata.etcd.options import EtcdOptions

# A member that lost its cluster answers with an error, so that another one is asked, and not with silence.
_ALWAYS: Metadata = (("hasleader", "true"),)


class Tokens:
    """Thread-safe."""

    def __init__(self, options: EtcdOptions) -> None:
        self._user = options.user
        self._password = options.password
        self._lock = threading.Lock()
        self._metadata: Metadata | None = None if options.user else _ALWAYS

    @property
    def can_renew(self) -> bool:
        return self._user is not None

    def metadata(self, calls: Calls, timeout_seconds: float) -> Metadata:
        """What goes with every call."""
        with self._lock:
            if self._metadata is None:
                self._metadata = _ALWAYS + self._authenticated(calls, timeout_seconds)
            return self._metadata

    def refused(self, metadata: Metadata) -> None:
        """Get another one for the next call, unless somebody did already."""
        with self._lock:
            if self._metadata == metadata and self.can_renew:
                self._metadata = None

    def _authenticated(self, calls: Calls, timeout_seconds: float) -> Metadata:
        request = AuthenticateRequest(name=self._user, password=self._password)
        try:
            return (("token", calls.authenticate(request, timeout=timeout_seconds, metadata=_ALWAYS).token),)
        except grpc.RpcError as error:
            if "authentication is not enabled" in text_of(error):
                return ()  # as etcd's own client does: a cluster that asks for nobody lets everybody in
            raise
