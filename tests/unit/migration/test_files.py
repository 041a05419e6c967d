"""Files are found, known again, and cut at the same rows each time."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.config import Settings
from icestream.migration.journal import PublishedRows
from icestream.migration.parquet_files import Identity, ParquetSource
from icestream.migration.sources import FoundFile, LocalSource, open_source, store_settings
from icestream.model.errors import DamagedError, InvalidRequestError

ROWS = pa.table({"a": pa.array(range(100)), "b": [f"text {number}" for number in range(100)]})


def write(path: Path, rows: pa.Table = ROWS, row_group: int = 30) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, row_group_size=row_group)
    return path


def files(place: object) -> list[FoundFile]:
    return open_source(str(place), Settings()).files()


def opened(path: Path) -> ParquetSource:
    [found] = files(path)
    return ParquetSource(LocalSource(str(path)), found)


class TestFinding:
    def test_a_folder_is_searched_through_and_markers_are_passed_over(self, tmp_path: Path) -> None:
        for name in ("b.parquet", "a/x.parq", "_temporary/y.parquet", ".hidden.parquet", "a/_SUCCESS", "notes.txt"):
            write(tmp_path / name)
        assert [found.path for found in files(tmp_path)] == ["a/x.parq", "b.parquet"]

    @pytest.mark.parametrize("folder", ["old/sub", "old/date=2026-01-31/hour=03"])
    def test_a_file_is_known_by_where_it_lies_whichever_folder_is_named(self, tmp_path: Path, folder: str) -> None:
        path = write(tmp_path / folder / "x.parquet")
        above = tmp_path / "old"
        for place in (tmp_path, above, path.parent, path, path.parent / ".." / path.parent.name, above / "**" / "x*"):
            assert [found.known_as for found in files(place)] == [str(path)]
        write(tmp_path / "other" / path.relative_to(above))
        assert str(path) in [found.known_as for found in files(tmp_path)]

    def test_two_trees_with_the_same_names_stay_apart(self, tmp_path: Path) -> None:
        for tree in ("one", "two"):
            write(tmp_path / tree / "date=1" / "x.parquet")
        assert [found.path for found in files(tmp_path)] == ["one/date=1/x.parquet", "two/date=1/x.parquet"]

    def test_a_pattern_takes_any_name(self, tmp_path: Path) -> None:
        for name in ("a/part-0", "a/part-1", "b/part-0"):
            write(tmp_path / name)
        assert [found.path for found in files(tmp_path / "*" / "part-0")] == ["a/part-0", "b/part-0"]
        assert [found.path for found in files(tmp_path / "**" / "part-0")] == ["a/part-0", "b/part-0"]
        assert len(files(tmp_path / "**")) == 3

    def test_an_empty_folder_and_a_path_to_nothing_are_said_so(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequestError, match="no Parquet files"):
            files(tmp_path)
        with pytest.raises(InvalidRequestError, match="there is nothing at"):
            files(tmp_path / "none")
        with pytest.raises(InvalidRequestError, match="ftp:// is not a known store"):
            files("ftp://host/x")

    def test_a_bucket_is_opened_as_the_settings_say_for_objects_else_for_tables(self) -> None:
        keys = {"access_key": "k", "secret_key": "s", "endpoint": "http://127.0.0.1:1"}
        cloud = Settings.model_validate({"cloud": {"backend": "s3", "root": "s3://mine/x", **keys}})
        tables = Settings.model_validate({"object_store": {"type": "s3", "bucket": "mine", **keys}})
        for settings in (cloud, tables):
            found = store_settings(settings, "s3", "theirs")
            assert (found.root, found.endpoint) == ("s3://theirs", "http://127.0.0.1:1")
            assert found.access_key is not None
        assert store_settings(Settings(), "s3", "theirs").access_key is None


class TestIdentity:
    def test_it_is_the_same_each_time_and_another_one_for_another_path_or_content(self, tmp_path: Path) -> None:
        path = write(tmp_path / "x.parquet")
        with opened(path) as file, opened(path) as twice:
            one = file.identity
            assert twice.identity == one
        with opened(write(tmp_path / "y.parquet")) as file:
            assert (file.identity.content, file.identity.path != one.path) == (one.content, True)
        with opened(write(tmp_path / "x.parquet", ROWS.slice(1))) as file:
            assert (file.identity.path, file.identity.content != one.content) == (one.path, True)

    def test_it_is_read_from_the_name_of_its_producer(self) -> None:
        identity = Identity("ab", "cd")
        assert Identity.parse(identity.producer) == identity
        assert Identity.parse("migrate-x") is None
        assert Identity.parse("somebody") is None


class TestCutting:
    def test_batches_end_at_the_same_rows_each_time(self, tmp_path: Path) -> None:
        with opened(write(tmp_path / "x.parquet")) as file:
            pieces = list(file.slices(["a"], 20))
            assert [(piece.row, piece.row_group, piece.batch.num_rows) for piece in pieces] == [
                (0, 0, 20), (20, 0, 10), (30, 1, 20), (50, 1, 10), (60, 2, 20), (80, 2, 10), (90, 3, 10),
            ]  # fmt: skip

    @pytest.mark.parametrize("start", [0, 1, 19, 20, 29, 30, 31, 75, 99, 100])
    def test_reading_goes_on_at_any_row_and_ends_batches_where_they_ended_before(
        self, tmp_path: Path, start: int
    ) -> None:
        with opened(write(tmp_path / "x.parquet")) as file:
            pieces = list(file.slices(["a", "b"], 20, start))
            read = [value for piece in pieces for value in piece.batch["a"].to_pylist()]
            assert read == list(range(start, 100))
            assert {piece.row + piece.batch.num_rows for piece in pieces} <= {20, 30, 50, 60, 80, 90, 100}


class TestDamage:
    @pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", b"PAR1" + b"\xff" * 100 + b"PAR1"])
    def test_what_is_no_parquet_file_is_named(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.parquet").write_bytes(content)
        with pytest.raises(DamagedError, match=r"x\.parquet"):
            opened(tmp_path / "x.parquet")

    def test_a_damaged_page_is_named_with_its_row_group(self, tmp_path: Path) -> None:
        path = write(tmp_path / "x.parquet")
        place = pq.ParquetFile(path).metadata.row_group(1).column(1).data_page_offset
        content = bytearray(path.read_bytes())
        content[place : place + 40] = b"\xff" * 40
        path.write_bytes(content)
        with opened(path) as file, pytest.raises(DamagedError, match=r"row group 1 cannot be read.*x\.parquet"):
            list(file.slices(["a", "b"], 20))


class TestPresent:
    def test_it_grows_and_knows_a_hole(self) -> None:
        first, second = PublishedRows(10, 0, 10, 100, 110), PublishedRows(5, 10, 15, 200, 205)
        assert first + second == PublishedRows(15, 0, 15, 100, 205)
        assert (first + second).is_whole
        assert not (first + PublishedRows(5, 11, 16, 200, 205)).is_whole
        assert not PublishedRows(5, 1, 6, 0, 5).is_whole
        assert not (first + first).is_whole
