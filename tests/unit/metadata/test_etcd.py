"""What can be said of the etcd store without an etcd."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool
from pydantic import SecretStr

from icestream.config import MetadataSettings, SettingsError, load_settings
from icestream.metadata import CompactedError, EtcdOptions, LeaseExpiredError, open_metadata_store
from icestream.metadata.etcd import messages as m
from icestream.metadata.etcd.client import AccessDeniedError, Endpoints, EtcdClient, Failure, error_for, failure_of
from icestream.metadata.etcd.keyspace import Keyspace
from icestream.metadata.etcd.store import EtcdMetadataStore
from icestream.metadata.etcd.watch import EtcdWatch, WatchStream
from icestream.model.errors import (
    DamagedError,
    IcestreamError,
    InvalidRequestError,
    LimitReachedError,
    TooLargeError,
    UnavailableError,
)
from icestream_servers import free_port

Code = grpc.StatusCode


class Refusal(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self._code, self._text = code, text

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._text


@pytest.mark.parametrize(
    ("code", "text", "failure", "kind"),
    [
        (Code.UNAVAILABLE, "failed to connect to all addresses; last error: …", Failure.NOT_DONE, UnavailableError),
        (Code.UNAVAILABLE, "etcdserver: no leader", Failure.NOT_DONE, UnavailableError),
        (Code.UNAVAILABLE, "etcdserver: request timed out", Failure.LOST, UnavailableError),
        (Code.UNAVAILABLE, "Socket closed", Failure.LOST, UnavailableError),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Failure.LOST, UnavailableError),
        (Code.UNKNOWN, "raft proposal dropped", Failure.LOST, UnavailableError),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", Failure.BAD_TOKEN, AccessDeniedError),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", Failure.FINAL, AccessDeniedError),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", Failure.FINAL, AccessDeniedError),
        (Code.NOT_FOUND, "etcdserver: requested lease not found", Failure.FINAL, LeaseExpiredError),
        (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Failure.FINAL, CompactedError),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Failure.FINAL, LimitReachedError),
        (Code.INVALID_ARGUMENT, "etcdserver: request is too large", Failure.FINAL, TooLargeError),
        (Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", Failure.FINAL, InvalidRequestError),
        (Code.DATA_LOSS, "etcdserver: corrupt cluster", Failure.FINAL, DamagedError),
        (Code.UNIMPLEMENTED, "unknown service", Failure.FINAL, IcestreamError),
    ],
)
def test_what_etcd_says_becomes_a_typed_error(
    code: grpc.StatusCode, text: str, failure: Failure, kind: type[IcestreamError]
) -> None:
    refusal = Refusal(code, text)
    assert failure_of(refusal) is failure
    error = error_for(refusal, operation="get", place="/a")
    assert type(error) is kind
    assert (error.operation, error.place) == ("get", "/a")


def test_the_store_opens_without_an_etcd_and_says_what_is_missing() -> None:
    options = EtcdOptions((f"127.0.0.1:{free_port()}",), timeout_seconds=0.2)
    with open_metadata_store(etcd=options) as store:
        assert isinstance(store, EtcdMetadataStore)
        with pytest.raises(UnavailableError, match="etcd does not respond") as raised:
            store.get("/a")
        assert raised.value.retryable


def test_without_an_endpoint_there_is_no_store() -> None:
    with pytest.raises(InvalidRequestError):
        Endpoints(EtcdOptions(()))


def test_a_prefix_covers_its_own_keys_and_no_private_ones() -> None:
    keyspace = Keyspace("/p")
    assert keyspace.range_of("") == (b"/p/", b"/p0")
    assert keyspace.range_of("/a/") == (b"/p/a/", b"/p/a0")
    first, end = keyspace.range_of("/ä")
    assert first <= "/p/ä".encode() < "/p/äz".encode() < end <= "/p/å".encode()
    first, end = keyspace.range_of("")
    assert not first <= keyspace.private("tickets") < end


def test_progress_that_etcd_reports_moves_an_idle_watch_on() -> None:
    with closing(EtcdClient(EtcdOptions(("127.0.0.1:1",)))) as client:
        stream = WatchStream(client, Keyspace(""), "/w/", 5)
        watch = EtcdWatch(stream, lambda _: None)
        stream._take_in(m.WatchResponse(created=True, header=m.ResponseHeader(revision=9)))
        assert (watch.wait(0), watch.resume_revision) == ((), 5)
        stream._take_in(m.WatchResponse(header=m.ResponseHeader(revision=9)))
        assert (watch.wait(0), watch.resume_revision) == ((), 10)
        watch.close()


def test_another_etcd_client_in_the_process_does_not_meet_our_messages() -> None:
    name = m.RangeRequest.DESCRIPTOR.full_name
    assert name == "icestream.etcd.RangeRequest"
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName(name)


def test_a_broker_without_etcd_does_not_import_grpc() -> None:
    code = "import sys, icestream.storage; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_password_shows_nowhere() -> None:
    settings = MetadataSettings(etcd_endpoint=("a:1",), etcd_user="me", etcd_password=SecretStr("open sesame"))
    assert "open sesame" not in repr(settings)
    assert "open sesame" not in repr(EtcdOptions(("a:1",), user="me", password="open sesame"))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("etcd_user: me", "etcd_password must be set"),
        ("etcd_password: p", "etcd_user must be set"),
        ("etcd_cert_file: c.pem", "etcd_key_file must be set"),
        ("etcd_key_file: k.pem", "etcd_cert_file must be set"),
        ("etcd_ca_file: ca.pem, etcd_endpoint: 'http://a:1'", "cannot be http:// while"),
        ("etcd_prefix: no-slash", "etcd_prefix"),
        ("etcd_prefix: /ends/", "etcd_prefix"),
        ("etcd_timeout_ms: 1", "etcd_timeout_ms"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(tmp_path: Path, given: str, complaint: str) -> None:
    file = tmp_path / "icestream.yaml"
    file.write_text(f"metadata: {{{given}}}")
    with pytest.raises(SettingsError, match=complaint):
        load_settings(file, {}, {})
