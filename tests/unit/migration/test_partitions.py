"""What the names of folders say becomes a column of the topic, or is refused by name."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from icestream.migration.mapping import ColumnOptions, map_columns, partitions_of
from icestream.model.errors import InvalidMessageError, InvalidRequestError
from icestream.telemetry import Signal, topic_schema

ROWS = pa.record_batch({"id": pa.array([1, 2])})
NOTHING_SAID = ColumnOptions()


def filled(kind: pa.DataType, text: str | None, *, name: str = "region", nullable: bool = True) -> Any:
    wanted = pa.schema([("id", pa.int64()), pa.field(name, kind, nullable=nullable)])
    columns = map_columns(ROWS.schema, wanted, NOTHING_SAID, partitions={name: text})
    [value, same] = columns.apply(ROWS)[name].to_pylist()
    assert value == same
    return value


def test_names_and_values_are_decoded() -> None:
    path = "a=b%2Fc/odd%20name=M%C3%BCnchen/none=__HIVE_DEFAULT_PARTITION__/empty=/=x/plain/50=50%/x=y.parquet"
    assert partitions_of(path) == {"a": "b/c", "odd name": "München", "none": None, "empty": "", "50": "50%"}


def test_what_is_no_text_or_says_two_things_is_refused() -> None:
    with pytest.raises(InvalidMessageError, match="is no UTF-8 text"):
        partitions_of("a=%FF/x")
    with pytest.raises(InvalidMessageError, match="name 'a' twice"):
        partitions_of("a=1/a=2/x")
    assert partitions_of("a=1/a=1/x") == {"a": "1"}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.string(), "eu", "eu"),
        (pa.string(), None, None),
        (pa.binary(), "é", "é".encode()),
        (pa.int32(), "007", 7),
        (pa.int8(), "-5", -5),
        (pa.float64(), "1.5", 1.5),
        (pa.bool_(), "true", True),
        (pa.date32(), "2026-01-31", date(2026, 1, 31)),
        (pa.decimal128(5, 2), "1.25", Decimal("1.25")),
        (pa.timestamp("us"), "2026-01-31 10:00:00", datetime(2026, 1, 31, 10)),  # noqa: DTZ001 - it has no zone
        (pa.timestamp("us", "UTC"), "2026-01-31 10:00:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), "2026-01-31T10:00:00+01:00", datetime(2026, 1, 31, 9, tzinfo=UTC)),
    ],
)
def test_a_folders_text_becomes_the_columns_type(kind: pa.DataType, text: str | None, value: Any) -> None:
    assert filled(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), "eu"),
        (pa.int64(), "0x10"),
        (pa.int64(), "1.0"),
        (pa.int8(), "300"),
        (pa.bool_(), "yes"),
        (pa.date32(), "yesterday"),
        (pa.decimal128(5, 2), "1.255"),
        (pa.timestamp("us", "UTC"), "noon"),
    ],
)
def test_a_text_that_does_not_fit_is_refused_with_folder_and_column(kind: pa.DataType, text: str) -> None:
    with pytest.raises(InvalidMessageError, match=rf"the folder region={text} has no .* for column 'region'"):
        filled(kind, text)


def test_no_text_becomes_a_list() -> None:
    with pytest.raises(InvalidRequestError, match="column 'region': a folder's text does not become list"):
        filled(pa.list_(pa.string()), "eu")


def test_a_null_where_none_may_be_is_refused_but_in_telemetry() -> None:
    with pytest.raises(InvalidMessageError, match="says null for column 'region', which must not be null"):
        filled(pa.string(), None, nullable=False)
    given = pa.record_batch({"name": ["a"], "start_time_unix_nano": [1]})
    wanted = topic_schema(Signal.TRACES)
    partitions = {"trace_state": None, "trace_id": "0a" * 16}
    columns = map_columns(given.schema, wanted, NOTHING_SAID, partitions=partitions, signal=Signal.TRACES)
    [row] = columns.apply(given).to_pylist()
    assert (row["trace_state"], row["trace_id"]) == ("", b"\n" * 16)


class TestWhatHasNoPlace:
    wanted = pa.schema([("id", pa.int64()), ("zone", pa.string())])

    def test_it_is_refused_by_name_unless_it_is_renamed_or_ignored(self) -> None:
        partitions = {"region": "eu"}
        with pytest.raises(InvalidRequestError, match=r"no column 'region' of its folders; give --rename"):
            map_columns(ROWS.schema, self.wanted, NOTHING_SAID, partitions=partitions)
        renamed = map_columns(ROWS.schema, self.wanted, ColumnOptions({"region": "zone"}), partitions=partitions)
        assert renamed.apply(ROWS)["zone"].to_pylist() == ["eu", "eu"]
        assert "zone: the folder region=…" in renamed.notes
        ignored = map_columns(
            ROWS.schema, self.wanted, ColumnOptions(ignored=frozenset({"region"})), partitions=partitions
        )
        assert ignored.apply(ROWS)["zone"].to_pylist() == [None, None]

    def test_a_place_that_is_taken_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="'id' and 'region' would both become 'id'"):
            map_columns(ROWS.schema, self.wanted, ColumnOptions({"region": "id"}), partitions={"region": "1"})

    @pytest.mark.parametrize("name", ["date", "dt", "year", "month", "day", "hour"])
    def test_dates_and_hours_are_left_out_where_rows_have_a_time(self, name: str) -> None:
        partitions = {name: "01"}
        with pytest.raises(InvalidRequestError, match=f"no column '{name}' of its folders"):
            map_columns(ROWS.schema, self.wanted, NOTHING_SAID, partitions=partitions)
        timed = ROWS.append_column("seen", pa.array([0, 0], pa.timestamp("us")))
        wanted = self.wanted.append(pa.field("seen", pa.timestamp("us")))
        assert map_columns(timed.schema, wanted, NOTHING_SAID, partitions=partitions).dropped == (name,)
        with_place = wanted.append(pa.field(name, pa.int32()))
        columns = map_columns(timed.schema, with_place, NOTHING_SAID, partitions=partitions)
        assert (columns.dropped, columns.apply(timed)[name].to_pylist()) == ((), [1, 1])

    def test_what_iceberg_makes_of_a_column_is_left_out_where_the_file_has_the_column(self) -> None:
        partitions = {"id_bucket": "3", "id_trunc_10": "0"}
        columns = map_columns(ROWS.schema, self.wanted, NOTHING_SAID, partitions=partitions)
        assert columns.dropped == ("id_bucket", "id_trunc_10")
        with pytest.raises(InvalidRequestError, match="no column 'time_day' of its folders"):
            map_columns(ROWS.schema, self.wanted, NOTHING_SAID, partitions={"time_day": "3"})

    def test_a_column_of_the_file_is_never_left_out_for_its_folders(self) -> None:
        given = ROWS.append_column("region", pa.array(["us", "eu"]))
        with pytest.raises(InvalidRequestError, match="no column 'region'"):
            map_columns(given.schema, self.wanted, NOTHING_SAID, partitions={"region": "eu"})
        columns = map_columns(given.schema, self.wanted, ColumnOptions({"region": "zone"}), partitions={"region": "eu"})
        assert columns.apply(given)["zone"].to_pylist() == ["us", "eu"]
