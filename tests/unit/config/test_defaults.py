import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from icestream.config import CatalogSettings, MetadataSettings, Settings, WalSettings, load_settings
from icestream.model.enums import SyncMode


def test_settings_alone_are_the_embedded_defaults() -> None:
    settings = Settings()
    assert settings.data_dir == Path("icestream-data")
    assert settings.wal.dir == Path("icestream-data/wal")
    assert settings.metadata.sqlite_path == Path("icestream-data/metadata.db")
    assert settings.catalog.uri == "sqlite:///icestream-data/catalog.db"
    assert settings.catalog.warehouse == "icestream-data/warehouse"
    assert (settings.server.host, settings.server.flight_port, settings.wal.sync_mode) == ("127.0.0.1", 8815, "always")


def test_loading_nothing_gives_the_same_as_the_defaults() -> None:
    assert load_settings(environ={}) == Settings()


def test_settings_alone_ignore_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICESTREAM_WAL__SYNC_MODE", "os")
    monkeypatch.setenv("data_dir", "/elsewhere")
    monkeypatch.setenv("ICESTREAM_DATA_DIR", "icestream-data")
    assert Settings() == load_settings(environ={})
    assert load_settings().wal.sync_mode == "os"


def test_data_dir_moves_everything_that_has_no_place_of_its_own(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path, wal=WalSettings(sync_mode=SyncMode.OS), catalog=CatalogSettings(name="other")
    )
    assert settings.wal.dir == tmp_path / "wal"
    assert settings.wal.sync_mode == "os"
    assert settings.metadata.sqlite_path == tmp_path / "metadata.db"
    assert settings.catalog.uri == f"sqlite:///{tmp_path}/catalog.db"
    assert settings.catalog.warehouse == str(tmp_path / "warehouse")
    assert settings.catalog.name == "other"


def test_a_place_that_was_chosen_stays(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path,
        wal=WalSettings(dir=Path("fast-disk")),
        metadata=MetadataSettings(sqlite_path=Path("meta.db")),
        catalog=CatalogSettings(uri="postgresql://db/catalog", warehouse="s3://bucket/warehouse"),
    )
    assert settings.wal.dir == Path("fast-disk")
    assert settings.metadata.sqlite_path == Path("meta.db")
    assert settings.catalog.uri == "postgresql://db/catalog"
    assert settings.catalog.warehouse == "s3://bucket/warehouse"


def test_a_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = load_settings(overrides={"data_dir": "~/streams"}, environ={})
    assert settings.data_dir == tmp_path / "streams"
    assert settings.wal.dir == tmp_path / "streams/wal"
    assert settings.catalog.uri == f"sqlite:///{tmp_path}/streams/catalog.db"


def test_the_warehouse_follows_the_bucket() -> None:
    def warehouse(**flags: str | None) -> str | None:
        return load_settings(
            overrides={k.replace("__", "."): v for k, v in flags.items()}, environ={}
        ).catalog.warehouse

    assert warehouse(object_store__type="s3", object_store__bucket="lake") == "s3://lake"
    assert warehouse(object_store__type="gcs", object_store__bucket="lake") == "gs://lake"
    assert warehouse(object_store__type="local") == "icestream-data/warehouse"
    assert warehouse(catalog__type="rest", catalog__uri="http://localhost:8181") is None


def test_settings_cannot_be_changed() -> None:
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.data_dir = Path("elsewhere")
    with pytest.raises(ValidationError, match="frozen"):
        settings.wal.sync_mode = SyncMode.OS


def test_settings_survive_pickling_and_dumping(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert Settings(**settings.model_dump()) == settings
