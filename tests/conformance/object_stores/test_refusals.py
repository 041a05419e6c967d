"""Denied access and unreachable stores are clear errors without secrets."""

import base64
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.object_stores.conftest import PLACES, Cloud
from tests.http_proxy import Answer, FaultProxy

from icestream.cloud import ObjectStore
from icestream.cloud.opendal_store import open_object_store
from icestream.config import CloudSettings
from icestream.model.errors import IcestreamError, InvalidRequestError, UnavailableError
from icestream_servers import AzuriteServer, S3Server, free_port
from icestream_servers.azurite import ACCOUNT, ACCOUNT_KEY
from icestream_servers.s3 import ACCESS_KEY, SECRET_KEY

SECRETS = {
    "s3": {"access_key": ACCESS_KEY, "secret_key": "very/secret+key"},
    "gcs": {"credentials_json": '{"type": "service_account", "private_key": "very/secret+key"}'},
    "azblob": {"account_name": "devstoreaccount1", "account_key": base64.b64encode(b"very/secret+key").decode()},
}
SIGNATURES = ("Signature=", "Credential=", "sig=", "SharedKey", "uploadId", "upload_id")
MIB = 1024 * 1024


def calls(store: ObjectStore) -> list[Callable[[], Any]]:
    def write() -> None:
        writer = store.writer("key")
        writer.write(bytes(11 * MIB))
        writer.finish()

    return [
        lambda: store.read("key", 0, 1),
        lambda: store.stat("key"),
        lambda: store.put("key", b"1"),
        lambda: list(store.list("")),
        lambda: store.delete("key"),
        write,
    ]


def check(store: ObjectStore, kind: type[IcestreamError], secrets: list[str]) -> None:
    for call in calls(store):
        with pytest.raises(kind) as caught:
            call()
        shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(caught.value.to_dict())
        assert store.name in caught.value.place
        assert not [word for word in (*secrets, *SIGNATURES) if word in shown]


@pytest.fixture(params=["s3", "gcs", "azblob"])
def remote(request: pytest.FixtureRequest) -> Cloud:
    return {**PLACES[request.param](request), "max_retries": 1, "timeout_ms": 5_000, "part_mb": 5}


def with_secrets(cloud: Cloud) -> tuple[CloudSettings, list[str]]:
    secrets = SECRETS[cloud["backend"]]
    kept = {name: value for name, value in cloud.items() if name != "anonymous"}
    shown = [value for name, value in secrets.items() if name not in {"account_name", "access_key"}]
    return CloudSettings(**{**kept, **secrets}), shown


def test_wrong_credentials_are_refused(remote: Cloud, prefix: str) -> None:
    settings, secrets = with_secrets(remote)
    store = open_object_store(settings, prefix)
    check(store, InvalidRequestError, secrets)
    with pytest.raises(InvalidRequestError, match=r"check cloud\.root, cloud\.region, and the credentials"):
        store.stat("key")


def test_a_wrong_session_token_is_refused(s3_server: S3Server, prefix: str) -> None:
    cloud = {**s3_server.cloud_settings()["cloud"], "session_token": "a-session-token", "max_retries": 0}
    store = open_object_store(CloudSettings(**cloud), prefix)
    check(store, IcestreamError, ["a-session-token", SECRET_KEY])
    with pytest.raises(InvalidRequestError, match="InvalidToken"):
        store.put("key", b"1")


@pytest.fixture
def proxied(remote: Cloud) -> Iterator[tuple[Cloud, FaultProxy]]:
    host, _, path = remote["endpoint"].removeprefix("http://").partition("/")
    with FaultProxy(host) as proxy:
        yield {**remote, "endpoint": f"{proxy.url}/{path}".rstrip("/")}, proxy


@pytest.mark.parametrize(("status", "kind"), [(401, InvalidRequestError), (403, InvalidRequestError)])
def test_a_store_that_does_not_let_us_in_is_an_error_of_the_request(
    proxied: tuple[Cloud, FaultProxy], prefix: str, status: int, kind: type[IcestreamError]
) -> None:
    cloud, proxy = proxied
    proxy.inject(Answer(status), times=None)
    check(open_object_store(CloudSettings(**cloud), prefix), kind, [])


@pytest.mark.parametrize("status", [400, 403, 500, 503])
def test_an_answer_that_repeats_secrets_is_not_passed_on(s3_server: S3Server, prefix: str, status: int) -> None:
    told = f"""{SECRET_KEY} Signature=0a1b2c3d4e <Credential>{ACCESS_KEY}/eu</Credential> X-Amz-Security-Token: tok/en+1
        https://host/key?X-Amz-Signature=0a1b2c3d4e&uploadId=5f6a7b8c9d"""
    with FaultProxy(s3_server.url) as proxy:
        cloud = {**s3_server.cloud_settings(endpoint=proxy.url)["cloud"], "max_retries": 0}
        proxy.inject(Answer(status, told.replace("\n", " ").encode()), times=None)
        secrets = [SECRET_KEY, ACCESS_KEY, "0a1b2c3d4e", "tok/en+1", "5f6a7b8c9d"]
        store = open_object_store(CloudSettings(**cloud), prefix)
        for call in calls(store):
            with pytest.raises(IcestreamError) as caught:
                call()
            shown = "".join(traceback.format_exception(caught.value)) + str(caught.value.to_dict())
            assert not [secret for secret in secrets if secret in shown]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_store_that_stays_busy_is_unavailable(proxied: tuple[Cloud, FaultProxy], prefix: str, status: int) -> None:
    cloud, proxy = proxied
    busy = proxy.inject(Answer(status), times=None)
    store = open_object_store(CloudSettings(**cloud), prefix)
    with pytest.raises(UnavailableError) as caught:
        store.stat("key")
    assert caught.value.retryable
    assert busy.count == 2


def test_a_store_that_nobody_runs_is_unavailable(remote: Cloud, prefix: str) -> None:
    path = remote["endpoint"].removeprefix("http://").partition("/")[2]
    settings = CloudSettings(**{**remote, "endpoint": f"http://127.0.0.1:{free_port()}/{path}".rstrip("/")})
    store = open_object_store(settings, prefix)
    check(store, UnavailableError, [])
    with pytest.raises(UnavailableError, match="onnect"):
        store.stat("key")


def test_a_bucket_that_is_not_there_is_an_error_of_the_request(remote: Cloud, prefix: str) -> None:
    root = {"s3": "s3://no-such-bucket", "gcs": "gs://no-such-bucket", "azblob": "no-such-bucket"}
    store = open_object_store(CloudSettings(**{**remote, "root": root[remote["backend"]]}), prefix)
    if remote["backend"] != "gcs":  # whose emulator says no more than that something was not found
        with pytest.raises(InvalidRequestError, match=r"NoSuchBucket|ContainerNotFound"):
            store.put("key", b"1")
    with pytest.raises(IcestreamError) as caught:
        store.put("key", b"1")
    assert "no-such-bucket" in caught.value.place


def test_keys_of_the_environment_let_in(s3_server: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    store = open_object_store(CloudSettings(**without_keys(s3_server)), prefix)
    store.put("key", b"1")
    assert store.read("key", 0, 1) == b"1"


def test_an_account_of_the_environment_lets_in(
    azurite_server: AzuriteServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)
    cloud = azurite_server.cloud_settings()["cloud"]
    kept = {name: value for name, value in cloud.items() if name not in {"account_name", "account_key"}}
    store = open_object_store(CloudSettings(**kept), prefix)
    store.put("key", b"1")
    assert store.read("key", 0, 1) == b"1"


def test_a_named_profile_lets_in(
    s3_server: S3Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "credentials"
    file.write_text(
        f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = nothing\n"
        f"[archive]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    store = open_object_store(CloudSettings(**without_keys(s3_server), profile="archive"), prefix)
    store.put("key", b"1")
    assert store.read("key", 0, 1) == b"1"
    with pytest.raises(InvalidRequestError):
        open_object_store(CloudSettings(**without_keys(s3_server)), prefix).put("key", b"1")


def test_requests_without_a_signature_are_sent_as_such(s3_server: S3Server, prefix: str) -> None:
    store = open_object_store(CloudSettings(**without_keys(s3_server), anonymous=True), prefix)
    with pytest.raises(InvalidRequestError):
        store.put("key", b"1")


def without_keys(s3_server: S3Server) -> Cloud:
    cloud = s3_server.cloud_settings()["cloud"]
    return {name: value for name, value in cloud.items() if name not in {"access_key", "secret_key"}}
