"""The remote calls of etcd on one channel."""

from typing import TypeVar

import grpc
from google.protobuf.message import Message

from icestream.metadata.etcd import messages as m

Metadata = tuple[tuple[str, str], ...]
RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


class Calls:
    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self.range = self.unary("KV/Range", m.RangeRequest, m.RangeResponse)
        self.txn = self.unary("KV/Txn", m.TxnRequest, m.TxnResponse)
        self.lease_grant = self.unary("Lease/LeaseGrant", m.LeaseGrantRequest, m.LeaseGrantResponse)
        self.lease_revoke = self.unary("Lease/LeaseRevoke", m.LeaseRevokeRequest, m.LeaseRevokeResponse)
        self.lease_time_to_live = self.unary(
            "Lease/LeaseTimeToLive", m.LeaseTimeToLiveRequest, m.LeaseTimeToLiveResponse
        )
        self.lease_keep_alive = self._stream("Lease/LeaseKeepAlive", m.LeaseKeepAliveRequest, m.LeaseKeepAliveResponse)
        self.watch = self._stream("Watch/Watch", m.WatchRequest, m.WatchResponse)
        self.authenticate = self.unary("Auth/Authenticate", m.AuthenticateRequest, m.AuthenticateResponse)

    def unary(
        self, method: str, request: type[RequestT], reply: type[ReplyT]
    ) -> "grpc.UnaryUnaryMultiCallable[RequestT, ReplyT]":
        """Any call of etcd that has one request and one reply."""
        return self._channel.unary_unary(
            _path(method), request_serializer=request.SerializeToString, response_deserializer=reply.FromString
        )

    def _stream(
        self, method: str, request: type[RequestT], reply: type[ReplyT]
    ) -> "grpc.StreamStreamMultiCallable[RequestT, ReplyT]":
        return self._channel.stream_stream(
            _path(method), request_serializer=request.SerializeToString, response_deserializer=reply.FromString
        )


def _path(method: str) -> str:
    return f"/etcdserverpb.{method}"
