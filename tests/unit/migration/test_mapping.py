"""Columns of files find their places in the topic, or are refused by name."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.parquet_trees import START, spans

from icestream.migration.mapping import ColumnOptions, map_columns
from icestream.migration.target import guess_signal
from icestream.model.errors import InvalidMessageError, InvalidRequestError
from icestream.model.messages import ENVELOPE, MESSAGE_SCHEMA, stream_schema
from icestream.telemetry import Signal, topic_schema

TRACES = topic_schema(Signal.TRACES)
NOTHING_SAID = ColumnOptions()


def traces(given: pa.Table, column_options: ColumnOptions = NOTHING_SAID, **options: object) -> pa.Table:
    columns = map_columns(given.schema, TRACES, column_options, signal=Signal.TRACES, **options)  # type: ignore[arg-type]
    return pa.Table.from_batches([columns.apply(batch) for batch in given.select(columns.sources).to_batches()])


def test_rows_of_the_same_schema_are_taken_as_they_are() -> None:
    rows = spans(20)
    assert traces(rows).equals(rows)


def test_the_order_of_columns_does_not_matter() -> None:
    rows = spans(20)
    assert traces(rows.select(rows.schema.names[::-1])).equals(rows)


def test_what_icestream_and_folders_have_added_is_left_out() -> None:
    rows = spans(3)
    own = pa.table(
        [pa.array([5, 6, 7]), pa.array([0] * 3, ENVELOPE[1].type), pa.array(["p"] * 3), pa.array([0, 1, 2]), *rows],
        schema=stream_schema(TRACES),
    ).append_column("hour", pa.array([1, 1, 1]))
    columns = map_columns(
        own.schema, TRACES, NOTHING_SAID, partitions={"date": "2026-01-31", "hour": "01"}, signal=Signal.TRACES
    )
    assert columns.dropped == ("_offset", "_publish_time", "_producer", "_sequence", "hour", "date")
    assert traces(own, partitions={"hour": "01"}).equals(rows)


def test_an_unknown_column_is_refused_with_its_name_and_the_ways_out() -> None:
    rows = spans(2).append_column("color", pa.array(["red", "blue"])).append_column("hour", pa.array([1, 2]))
    with pytest.raises(InvalidRequestError, match=r"no column 'color', 'hour'; give --rename .* or --ignore"):
        traces(rows)
    ignored = ColumnOptions(ignored=frozenset({"color", "hour"}))
    assert traces(rows, ignored).equals(spans(2))
    without = rows.drop_columns(["status_message", "hour"])
    renamed = traces(without, ColumnOptions(renames={"color": "status_message"}))
    assert renamed["status_message"].to_pylist() == ["red", "blue"]


def test_two_columns_for_one_place_are_refused() -> None:
    rows = spans(2).append_column("title", pa.array(["a", "b"]))
    with pytest.raises(InvalidRequestError, match="'name' and 'title' would both become 'name'"):
        traces(rows, ColumnOptions(renames={"title": "name"}))


def test_missing_columns_are_null_or_what_otlp_means_by_leaving_them_out() -> None:
    given = pa.table({"name": ["a"], "trace_id": ["0a" * 16], "time": [datetime(2026, 1, 31, tzinfo=UTC)]})
    columns = map_columns(given.schema, TRACES, NOTHING_SAID, signal=Signal.TRACES)
    [row] = columns.apply(given.to_batches()[0]).to_pylist()
    assert (row["trace_id"], row["name"], row["kind"], row["trace_state"]) == (b"\n" * 16, "a", 0, "")
    assert (row["parent_span_id"], row["events"], row["resource"]) == (None, None, None)
    assert row["start_time_unix_nano"] == int(datetime(2026, 1, 31, tzinfo=UTC).timestamp()) * 10**9
    assert "kind: 0 everywhere, as OTLP means by leaving it out" in columns.notes
    assert "start_time_unix_nano: from time" in columns.notes


def test_nulls_where_none_may_be_are_what_otlp_means_by_leaving_them_out() -> None:
    rows = spans(2)
    place = rows.schema.get_field_index("trace_state")
    with_nulls = rows.set_column(place, "trace_state", pa.array([None, "a"]))
    assert traces(with_nulls)["trace_state"].to_pylist() == ["", "a"]


def test_time_and_service_are_found_from_other_columns_of_the_row() -> None:
    rows = spans(5)
    assert traces(rows.drop_columns(["time", "service_name"])).equals(rows)


def test_a_time_finer_than_the_tables_is_cut_off_beside_its_nanoseconds() -> None:
    rows = spans(1)
    exact = pa.array([START], pa.timestamp("ns", tz="UTC"))
    [row] = traces(rows.drop_columns(["start_time_unix_nano", "time"]).append_column("time", exact)).to_pylist()
    assert row["start_time_unix_nano"] == START
    assert row["time"] == spans(1)["time"][0].as_py()


def test_topics_of_other_kinds_get_no_default() -> None:
    wanted = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    with pytest.raises(InvalidRequestError, match="no column 'id', which must not be null"):
        map_columns(pa.schema([("text", pa.string())]), wanted, NOTHING_SAID)
    made = map_columns(pa.schema([("id", pa.int32())]), wanted, NOTHING_SAID)
    assert made.apply(pa.record_batch({"id": pa.array([1], pa.int32())})).to_pylist() == [{"id": 1, "text": None}]


def test_messages_are_columns_too() -> None:
    made = map_columns(pa.schema([("payload", pa.string())]), MESSAGE_SCHEMA, NOTHING_SAID)
    assert made.apply(pa.record_batch({"payload": ["a"]}))["payload"].to_pylist() == [b"a"]


def test_a_value_that_does_not_fit_names_its_column() -> None:
    made = map_columns(pa.schema([("n", pa.uint64())]), pa.schema([("n", pa.int64())]), NOTHING_SAID)
    with pytest.raises(InvalidMessageError, match="column 'n': "):
        made.apply(pa.record_batch({"n": pa.array([2**64 - 1], pa.uint64())}))


def test_a_file_without_any_column_of_the_topic_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="none of the topic's columns"):
        map_columns(
            pa.schema([("a", pa.int64())]), TRACES, ColumnOptions(ignored=frozenset({"a"})), signal=Signal.TRACES
        )


class TestGuess:
    @pytest.mark.parametrize("signal", list(Signal))
    def test_columns_tell_the_signal(self, signal: Signal) -> None:
        assert guess_signal(topic_schema(signal), ["x/logs"])[0] is signal

    @pytest.mark.parametrize(
        ("place", "signal"),
        [("old/Spans/date=1", Signal.TRACES), ("logs", Signal.LOGS), ("a/metrics-old/x.parquet", Signal.METRICS)],
    )
    def test_else_folders_do(self, place: str, signal: Signal) -> None:
        assert guess_signal(pa.schema([("time", pa.int64())]), [place])[0] is signal

    def test_else_nothing_is_guessed(self) -> None:
        with pytest.raises(InvalidRequestError, match="give --signal"):
            guess_signal(pa.schema([("time", pa.int64())]), ["data"])
