"""The folders of a Parquet copy and of a table never overlap, so the clean-up of one cannot remove the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from tests.unit.table.conftest import local

from icestream.config import Settings
from icestream.config.settings import first_below, is_within
from icestream.model.errors import InvalidRequestError
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName, copy_of
from icestream.table import Tables, TableSpec
from icestream.table.parquet_copy.layout import DATA_PATH

TOPIC = TopicName("a", "b")


def spec(topic: TopicName) -> TableSpec:
    return TableSpec(topic, "stream", 1, STREAM_SCHEMA)


def settings(path: Path, parquet_path: str, **sections: dict[str, str]) -> Settings:
    return Settings.model_validate({"data_dir": path, "storage": {"parquet_path": parquet_path}, **sections})


class Opened:
    def __init__(self) -> None:
        self._made: list[Tables] = []

    def __call__(self, chosen: Settings) -> Tables:
        self._made.append(Tables(chosen))
        return self._made[-1]

    def close(self) -> None:
        for tables in self._made:
            tables.close()


@pytest.fixture
def opened() -> Iterator[Opened]:
    made = Opened()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("location", "folder", "expected"),
    [
        ("s3://bucket/a/b", "s3://bucket/a", "b"),
        ("s3a://bucket/a//b/", "s3://bucket/a/", "b"),
        ("s3://bucket/ab", "s3://bucket/a", None),
        ("s3://bucket/a", "s3://other/a", None),
        ("gs://bucket/a/b", "s3://bucket/a", None),
        ("/data/a/../w/x", "file:///data/w", "x"),
        ("/data/w", "/data/w/", None),
    ],
)
def test_what_lies_in_what(location: str, folder: str, expected: str | None) -> None:
    assert first_below(location, folder) == expected
    assert is_within(location, folder) == (expected is not None or location == folder.rstrip("/"))


def test_a_link_is_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert is_within(f"{tmp_path}/link/x", f"{tmp_path}/real")


@pytest.mark.parametrize("below", ["", "/", "/a/b", "/plain"])
def test_plain_files_are_not_put_into_the_warehouse(tmp_path: Path, below: str) -> None:
    with pytest.raises(ValueError, match=r"storage\.parquet_path must not be in catalog\.warehouse"):
        settings(tmp_path, f"{tmp_path}/warehouse{below}")
    bucket = {"type": "s3", "bucket": "lake"}
    with pytest.raises(ValueError, match=r"storage\.parquet_path must not be in catalog\.warehouse"):
        settings(tmp_path, f"s3://lake{below}", object_store=bucket)


def test_a_folder_that_no_namespace_can_have_may_be_in_the_warehouse(tmp_path: Path) -> None:
    bucket = {"type": "s3", "bucket": "lake"}
    assert settings(tmp_path, "s3://lake/-plain", object_store=bucket).storage.parquet_path == "s3://lake/-plain"
    assert settings(tmp_path, f"{tmp_path}/warehouse-2").storage.parquet_path


@pytest.mark.parametrize("place", ["../..", ".", "plain"])
def test_a_copy_is_not_made_in_the_table_of_its_topic(tmp_path: Path, opened: Opened, place: str) -> None:
    """Where the catalog puts tables, the settings need not say: a REST server or Glue decides."""
    table = opened(Settings(data_dir=tmp_path)).open(spec(TOPIC))
    unseen = {"warehouse": str(tmp_path / "unseen"), "uri": f"sqlite:///{tmp_path}/catalog.db"}
    tables = opened(settings(tmp_path, str(local(table.location) / place), catalog=unseen))
    with pytest.raises(InvalidRequestError, match="overlap"):
        tables.open(spec(copy_of(TOPIC)))
    assert tables.find(copy_of(TOPIC)) is None


def test_a_table_is_not_made_in_the_folder_of_its_copy(tmp_path: Path, opened: Opened) -> None:
    unseen = {"warehouse": str(tmp_path / "unseen"), "uri": f"sqlite:///{tmp_path}/catalog.db"}
    opened(settings(tmp_path, str(tmp_path / "warehouse"), catalog=unseen)).open(spec(copy_of(TOPIC)))
    tables = opened(Settings(data_dir=tmp_path))
    with pytest.raises(InvalidRequestError, match="overlap"):
        tables.open(spec(TOPIC))
    assert tables.find(TOPIC) is None


def test_a_copy_that_is_among_a_table_already_is_not_written_to(tmp_path: Path, opened: Opened) -> None:
    tables = opened(Settings(data_dir=tmp_path))
    location = tables.open(spec(TOPIC)).location
    copy = tables.open(spec(copy_of(TOPIC)))
    with copy.iceberg.transaction() as change:
        change.set_properties({DATA_PATH: f"{location}/plain"})
    with pytest.raises(InvalidRequestError, match="overlap"):
        tables.open(spec(copy_of(TOPIC)))


def test_a_copy_stays_where_it_began_and_the_log_says_so(tmp_path: Path, opened: Opened) -> None:
    began = opened(Settings(data_dir=tmp_path)).open(spec(copy_of(TOPIC))).properties[DATA_PATH]
    with structlog.testing.capture_logs() as told:
        again = opened(settings(tmp_path, str(tmp_path / "elsewhere"))).open(spec(copy_of(TOPIC)))
    assert again.properties[DATA_PATH] == began
    assert [(line["folder"], line["configured"]) for line in told] == [(began, f"file://{tmp_path}/elsewhere/a/b")]
    with structlog.testing.capture_logs() as told:
        opened(Settings(data_dir=tmp_path)).open(spec(copy_of(TOPIC)))
    assert told == []
