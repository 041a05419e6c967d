import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from icestream.config import Settings, load_settings
from icestream.model.errors import CatalogUnavailableError, CommitConflictError, IcestreamError
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.model.offsets import OffsetRanges
from icestream.pipeline.one_pass import commit
from icestream.pipeline.state import PendingCommit
from icestream.table import Tables, TableSpec
from icestream.table.catalogs import catalog_properties

SECRET = "s3cr3t-v4lue"
S3 = {
    "object_store.type": "s3",
    "object_store.bucket": "lake",
    "object_store.access_key": f"key-{SECRET}",
    "object_store.secret_key": SECRET,
    "object_store.session_token": f"token-{SECRET}",
}


def _settings(**flags: Any) -> Settings:
    return load_settings(overrides={key.replace("__", "."): value for key, value in flags.items()}, environ={})


def test_the_embedded_catalog_is_the_same_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    properties = catalog_properties(_settings(data_dir="data"))
    assert properties["uri"] == f"sqlite:///{tmp_path}/data/catalog.db?timeout=30"
    assert properties["warehouse"] == f"file://{tmp_path}/data/warehouse"


def test_a_database_elsewhere_is_named_as_it_stands() -> None:
    uri = "postgresql+psycopg2://me:pass%40word@db:5433/catalog?connect_timeout=3"
    settings = _settings(catalog__uri=uri, catalog__warehouse="s3://lake/tables")
    assert catalog_properties(settings)["uri"] == f"{uri}&tcp_user_timeout=30000"
    assert catalog_properties(settings)["warehouse"] == "s3://lake/tables"


def test_a_time_out_that_was_chosen_stays(tmp_path: Path) -> None:
    settings = _settings(catalog__uri=f"sqlite:///{tmp_path}/c.db?timeout=5")
    assert catalog_properties(settings)["uri"] == f"sqlite:///{tmp_path}/c.db?timeout=5"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"object_store.endpoint": "http://minio:9000", "object_store.path_style": "true"}, None),
        ({"object_store.endpoint": "http://minio:9000"}, "true"),
        ({}, None),
    ],
)
def test_buckets_are_addressed_as_the_settings_say(flags: dict[str, str], expected: str | None) -> None:
    properties = catalog_properties(_settings(**S3, **flags))
    assert properties.get("s3.force-virtual-addressing") == expected
    assert properties["s3.secret-access-key"] == SECRET
    assert properties["warehouse"] == "s3://lake"


def test_without_keys_the_environment_gives_the_credentials() -> None:
    properties = catalog_properties(_settings(object_store__type="s3", object_store__bucket="lake"))
    assert not [key for key in properties if "access-key" in key or "token" in key]


def test_properties_of_the_user_win() -> None:
    settings = Settings.model_validate(
        {"catalog": {"properties": {"s3.endpoint": "http://own", "warehouse": "s3://x"}}}
    )
    assert catalog_properties(settings)["s3.endpoint"] == "http://own"
    assert catalog_properties(settings)["warehouse"] == "s3://x"


def test_a_rest_catalog_plans_where_it_is_told_to() -> None:
    flags = {"catalog.type": "rest", "catalog.uri": "http://127.0.0.1:1"}
    assert catalog_properties(_settings(**flags))["scan-planning-mode"] == "client"
    assert (
        catalog_properties(_settings(**flags, **{"catalog.scan_planning": "server"}))["scan-planning-mode"] == "server"
    )


@pytest.mark.parametrize(
    "catalog",
    [
        {"catalog.type": "rest", "catalog.uri": f"http://user:{SECRET}@127.0.0.1:1/path?token={SECRET}"},
        {"catalog.uri": f"postgresql+psycopg2://me:{SECRET}@127.0.0.1:1/db", "catalog.warehouse": "s3://lake"},
        {"catalog.uri": f"nosuch://me:{SECRET}@127.0.0.1:1/db", "catalog.warehouse": "s3://lake"},
        {"catalog.uri": f"sqlite:////proc/nowhere/{'x'}/c.db"},
    ],
    ids=["rest", "postgres", "unknown", "sqlite"],
)
def test_a_catalog_that_is_away_is_an_error_without_secrets(catalog: dict[str, str]) -> None:
    tables = Tables(_settings(**S3, **catalog))
    spec = TableSpec(TopicName("default", "events"), "stream-1", 1, STREAM_SCHEMA)
    for call in (lambda: tables.open(spec), lambda: tables.find(spec.topic), lambda: tables.drop(spec.topic, "s")):
        with pytest.raises(IcestreamError) as caught:
            call()
        assert SECRET not in str(caught.value)
        assert SECRET not in str(caught.value.to_dict())
        assert isinstance(caught.value, CatalogUnavailableError)
    tables.close()


def test_a_catalog_that_comes_back_is_used_without_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    tables = Tables(_settings(data_dir=str(tmp_path), catalog__uri=f"sqlite:///{folder}/catalog.db"))
    folder.write_text("in the way")
    with pytest.raises(CatalogUnavailableError):
        tables.find(TopicName("default", "events"))
    folder.unlink()
    assert tables.find(TopicName("default", "events")) is None
    tables.close()


@pytest.mark.parametrize(
    ("catalog", "library"),
    [
        ({"type": "rest", "uri": "http://127.0.0.1:1"}, "icestream.table.rest_catalog"),
        ({"type": "glue", "warehouse": "s3://lake"}, "pyiceberg.catalog.glue"),
        ({"type": "sql"}, "icestream.table.sql_catalogs"),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_a_catalogs_library_can_be_loaded_before_it_is_opened(catalog: dict[str, str], library: str) -> None:
    program = f"""
import sys
from icestream.config import Settings
from icestream.table.catalogs import load_library
settings = Settings(catalog={catalog})
assert {library!r} not in sys.modules
load_library(settings)
assert {library!r} in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)  # in this process it is loaded by now


def test_a_catalog_that_is_moved_away_is_said_to_be_gone_and_is_used_again_when_it_is_back(tmp_path: Path) -> None:
    """SQLite alone reads on in the moved file, and fails to write to it."""
    tables = Tables(_settings(data_dir=str(tmp_path)))
    table = tables.open(TableSpec(TopicName("a", "b"), "stream", 1, STREAM_SCHEMA))
    catalog, aside = tmp_path / "catalog.db", tmp_path / "aside.db"
    catalog.rename(aside)
    pending = PendingCommit((), start=0, end=1, epoch=1, lost=OffsetRanges.of([(0, 1)]))
    for call in (lambda: tables.find(table.name), table.refresh, lambda: commit(table, pending)):
        with pytest.raises(CatalogUnavailableError, match="the catalog is gone"):
            call()
    assert not catalog.exists()
    shutil.copy(aside, catalog)
    assert commit(table, pending).table.ledger.committed_offset == 1
    tables.close()


def test_commits_that_fail_again_and_again_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables(_settings(data_dir=str(tmp_path)))
    table = tables.open(TableSpec(TopicName("a", "b"), "stream", 1, STREAM_SCHEMA))

    def fail(*_: object) -> None:
        raise RuntimeError("attempt to write a readonly database")

    monkeypatch.setattr(type(tables.catalog), "commit_table", fail)
    pending = PendingCommit((), start=0, end=1, epoch=1, lost=OffsetRanges.of([(0, 1)]))
    with pytest.raises(CommitConflictError, match="readonly database"):
        commit(table, pending)
    tables.close()
