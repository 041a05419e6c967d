from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from icestream import Client
from icestream.cli.consume import command as consume
from icestream.cli.options import parse_start
from icestream.cli.topic import create, read_schema, update
from icestream.model.errors import InvalidRequestError
from icestream.model.offsets import StartPosition
from icestream.protocol.admin import TopicDescription, topic_attributes

NOON_US = 1_769_860_800_000_000


def start(text: str) -> StartPosition:
    return parse_start(click.Context(consume), consume.params[0], text)


class TestStart:
    @pytest.mark.parametrize(
        ("text", "position"),
        [
            ("earliest", StartPosition.earliest()),
            ("latest", StartPosition.latest()),
            ("0", StartPosition.offset(0)),
            ("20260131", StartPosition.offset(20_260_131)),
            ("2026-01-31T12:00:00Z", StartPosition.timestamp(NOON_US)),
            ("2026-01-31T12:00:00.000001Z", StartPosition.timestamp(NOON_US + 1)),
            ("2026-01-31T13:00:00+01:00", StartPosition.timestamp(NOON_US)),
            ("2026-01-31 12:00", StartPosition.timestamp(NOON_US)),
        ],
    )
    def test_may_be_a_name_an_offset_or_a_time(self, text: str, position: StartPosition) -> None:
        assert start(text) == position

    @pytest.mark.parametrize("text", ["", "-1", "1.5", "now", "snapshot:one", "tag:", "9" * 30, "2026-13-01"])
    def test_is_nothing_else(self, text: str) -> None:
        with pytest.raises(click.BadParameter, match="is none of: earliest, latest, an offset, a time"):
            start(text)


def test_an_unknown_start_is_wrong_use() -> None:
    result = CliRunner().invoke(consume, ["t", "--from", "now"])
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(("command", "to_change"), [(create, False), (update, True)])
def test_every_attribute_of_a_topic_is_an_option(command: click.Command, to_change: bool) -> None:
    attributes = {attribute.name for attribute in topic_attributes() if attribute.changeable or not to_change}
    options = {option.name for option in command.params if isinstance(option, click.Option)}
    assert options - attributes <= {"codec", "if_not_exists", "broker", "token", "as_json"}
    assert attributes <= options


def test_a_limit_can_be_removed_but_not_created_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, int] = {}

    def update_topic(_client: Client, _topic: str, **given: int) -> TopicDescription:
        changes.update(given)
        raise InvalidRequestError("far enough")

    monkeypatch.setattr(Client, "update_topic", update_topic)
    CliRunner().invoke(update, ["t", "--retention-minutes", "0", "--retention-mb", "0"])
    assert changes == {"retention_minutes": 0, "retention_mb": 0}
    assert CliRunner().invoke(create, ["t", "--retention-mb", "0"]).exit_code == 2


class TestSchemaFile:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])

    def test_may_be_a_serialized_schema(self, tmp_path: Path) -> None:
        (tmp_path / "schema").write_bytes(self.schema.serialize().to_pybytes())
        assert read_schema(tmp_path / "schema").equals(self.schema)

    def test_may_be_an_arrow_file_or_stream(self, tmp_path: Path) -> None:
        for kind in (pa.ipc.new_file, pa.ipc.new_stream):
            with kind(tmp_path / "rows", self.schema.with_metadata({"x": "y"})):
                pass
            assert read_schema(tmp_path / "rows").equals(self.schema, check_metadata=True)

    def test_may_be_a_parquet_file(self, tmp_path: Path) -> None:
        pq.write_table(self.schema.empty_table(), tmp_path / "rows.parquet")
        assert read_schema(tmp_path / "rows.parquet").equals(self.schema)

    @pytest.mark.parametrize("content", [b"", b"{}", b"PAR1", b"ARROW1", b"\xff" * 100])
    def test_is_nothing_else(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(InvalidRequestError, match="no Arrow schema can be read"):
            read_schema(tmp_path / "bad")
