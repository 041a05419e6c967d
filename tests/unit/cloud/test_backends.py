"""Settings become OpenDAL's options."""

import base64
from pathlib import Path
from typing import Any

import pytest

from icestream.cloud.opendal_store import backend_of, open_object_store
from icestream.config import CloudSettings, SettingsError, load_settings
from icestream.model.errors import InvalidRequestError

SECRET = "hunter2"


def options(**settings: Any) -> dict[str, str]:
    return dict(backend_of(CloudSettings(**settings), "").options)


def test_s3_with_all_it_takes() -> None:
    given = options(
        backend="s3",
        root="s3://bucket/some/prefix",
        region="eu-central-1",
        endpoint="http://minio:9000",
        access_key="id",
        secret_key=SECRET,
        session_token="token",
        role_arn="arn:aws:iam::1:role/writer",
        virtual_host_style=True,
    )
    assert given == {
        "bucket": "bucket",
        "region": "eu-central-1",
        "endpoint": "http://minio:9000",
        "access_key_id": "id",
        "secret_access_key": SECRET,
        "session_token": "token",
        "role_arn": "arn:aws:iam::1:role/writer",
        "enable_virtual_host_style": "true",
    }


def test_what_is_not_set_is_left_to_the_environment() -> None:
    assert options(backend="s3", root="s3://bucket") == {"bucket": "bucket"}
    assert options(backend="gcs", root="gs://bucket") == {"bucket": "bucket"}
    assert options(backend="s3", root="s3://bucket", profile="archive") == {"bucket": "bucket", "profile": "archive"}


def test_a_public_bucket_is_asked_without_a_signature() -> None:
    assert options(backend="s3", root="s3://b", anonymous=True) == {"bucket": "b", "skip_signature": "true"}
    assert options(backend="gcs", root="gcs://b", anonymous=True) == {"bucket": "b", "skip_signature": "true"}


def test_gcs_takes_a_service_account_as_text_or_as_a_file() -> None:
    text = options(backend="gcs", root="gcs://b", project="p", credentials_json='{"type": "service_account"}')
    assert base64.b64decode(text["credential"]) == b'{"type": "service_account"}'
    file = options(backend="gcs", root="gcs://b", credentials_path="/etc/account.json")
    assert file["credential_path"] == "/etc/account.json"


def test_azblob_finds_its_endpoint_by_the_account() -> None:
    given = options(backend="azblob", root="container/prefix", account_name="acc", account_key=SECRET)
    assert given == {
        "container": "container",
        "endpoint": "https://acc.blob.core.windows.net",
        "account_name": "acc",
        "account_key": SECRET,
    }
    assert options(backend="azblob", root="c", endpoint="http://azurite:1/acc")["endpoint"] == "http://azurite:1/acc"


@pytest.mark.parametrize(
    ("settings", "prefix", "base", "name"),
    [
        ({"backend": "s3", "root": "s3://b/p/q"}, "/data", "p/q/data/", "s3://b/p/q/data"),
        ({"backend": "s3", "root": "b"}, "", "", "s3://b"),
        ({"backend": "s3", "root": "s3://b//p//"}, "//data//x/", "p/data/x/", "s3://b/p/data/x"),
        ({"backend": "gcs", "root": "gs://b/p"}, "data", "p/data/", "gcs://b/p/data"),
        ({"backend": "azblob", "root": "c/p", "account_name": "a"}, "/data", "p/data/", "azblob://c/p/data"),
        ({"backend": "fs", "root": "/objects"}, "/data", "data/", "/objects/data"),
        ({"backend": "memory", "root": "some"}, "/data", "data/", "memory://some/data"),
        ({"backend": "memory"}, "", "", "memory:"),
    ],
)
def test_objects_lie_below_the_root_and_the_prefix(settings: dict[str, Any], prefix: str, base: str, name: str) -> None:
    backend = backend_of(CloudSettings(**settings), prefix)
    assert (backend.base, backend.name) == (base, name)


def test_a_backend_does_not_show_its_secrets() -> None:
    settings: dict[str, Any] = {"access_key": "some-id", "secret_key": SECRET, "session_token": "tok-en"}
    shown = repr(backend_of(CloudSettings(backend="s3", root="s3://b", **settings), ""))
    assert not [secret for secret in ("some-id", SECRET, "tok-en") if secret in shown]


@pytest.mark.parametrize(
    ("cloud", "key", "phrase"),
    [
        (
            "{backend: s3, root: 's3://b', account_key: hunter2}",
            "account_key",
            "belongs to cloud.backend azblob, not s3",
        ),
        ("{backend: gcs, root: 'gs://b', region: r}", "region", "belongs to cloud.backend s3, not gcs"),
        ("{backend: fs, root: /x, endpoint: 'http://x'}", "endpoint", "belongs to cloud.backend s3 or gcs or azblob"),
        ("{backend: memory, anonymous: true}", "anonymous", "belongs to cloud.backend s3 or gcs or azblob"),
        ("{backend: azblob, root: c, account_key: hunter2}", "account_name", "must be set too"),
        ("{backend: azblob, root: c}", "endpoint", "or cloud.account_name must be set"),
        ("{backend: s3, root: 'gs://b'}", "root", "must begin with s3://"),
        ("{backend: gcs, root: 'gcs:///p'}", "root", "must name a bucket or container"),
        ("{backend: azblob, root: /p, account_name: a}", "root", "must name a bucket or container"),
        ("{backend: s3, root: 's3://b', session_token: hunter2}", "session_token", "needs cloud.access_key"),
        ("{backend: s3, root: 's3://b', anonymous: true, profile: p}", "anonymous", "while cloud.profile is set"),
    ],
)
def test_settings_that_do_not_go_together_are_named(cloud: str, key: str, phrase: str, tmp_path: Path) -> None:
    file = tmp_path / "icestream.yml"
    file.write_text(f"cloud: {cloud}\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(file, environ={})
    assert [problem.key for problem in caught.value.problems] == [f"cloud.{key}"]
    assert phrase in str(caught.value)
    assert SECRET not in str(caught.value)


def test_without_a_backend_there_is_no_store() -> None:
    with pytest.raises(InvalidRequestError, match=r"set cloud\.backend"):
        open_object_store(CloudSettings(), "")


def test_a_region_that_is_nowhere_to_be_found_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidRequestError, match=r"region is missing.*cloud\.region"):
        open_object_store(CloudSettings(backend="s3", root="s3://b"), "")
