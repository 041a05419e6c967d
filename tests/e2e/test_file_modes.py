"""Files that a broker makes are for its own user alone."""

import os
import stat
from pathlib import Path

from click.testing import CliRunner

from icestream.broker_process import BrokerProcess
from icestream.cli.main import cli
from icestream.client import Client
from icestream.config import Settings
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.table import Tables, TableSpec


def readable_by_others(directory: Path) -> list[str]:
    found = (path for path in (directory, *directory.rglob("*")) if not path.is_symlink())
    return [str(path) for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_what_a_broker_writes_is_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        data = tmp_path / "data"
        with BrokerProcess(data, arguments=["--no-pipeline"]) as broker, Client(broker.flight) as client:
            with client.producer("a/b") as producer:
                producer.send(b"secret").result()
            client.create_subscription("a/b", "s")
            client.stats()
        data.chmod(0o700)  # the test made it
        made = [path for path in data.rglob("*") if path.is_file()]
        assert any(path.suffix == ".log" for path in made)
        outputs = {str(path) for path in made if path.parent == data and path.name.startswith("broker")}
        assert [path for path in readable_by_others(data) if path not in outputs] == []
    finally:
        os.umask(before)


def test_what_commands_write_into_the_warehouse_is_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        CliRunner().invoke(cli, ["table", "register", "--all", "--data", str(tmp_path)])
        tables = Tables(Settings(data_dir=tmp_path))
        tables.open(TableSpec(TopicName("a", "b"), "stream", 1, STREAM_SCHEMA))
        tables.close()
        assert (tmp_path / "catalog.db").exists()
        tmp_path.chmod(0o700)
        assert readable_by_others(tmp_path) == []
    finally:
        os.umask(before)
