"""`icestream migrate parquet-to-iceberg` as a user has it, and files in a bucket."""

import json
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from tests.parquet_trees import body, spans, write_tree
from tests.topics import Topics

from icestream.cli.main import cli
from icestream.cloud.opendal_store import open_object_store
from icestream.config import CloudSettings
from icestream.model.names import TopicName
from icestream_servers import S3Server
from icestream_servers.s3 import ACCESS_KEY, REGION, SECRET_KEY


@pytest.fixture
def tenant() -> str:
    return f"t{uuid4().hex[:10]}"


def run(topics: Topics, *arguments: object) -> Result:
    given = ["migrate", "parquet-to-iceberg", *map(str, arguments), "--broker", topics.broker.flight]
    return CliRunner().invoke(cli, given)


def report_of(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_it_waits_for_the_table_and_proves_that_the_rows_are_there(topics: Topics, tmp_path: Path, tenant: str) -> None:
    write_tree(tmp_path, files=2, rows=30)
    first = run(topics, tmp_path, "--tenant", tenant, "--no-wait", "--json")
    assert (first.exit_code, report_of(first)["committed"]) == (0, False)
    draining = threading.Thread(target=topics.drain, args=(TopicName(tenant, "traces"),))
    draining.start()
    result = run(topics, tmp_path, "--tenant", tenant, "--json")
    draining.join()
    report = report_of(result)
    assert (result.exit_code, report["committed"], report["rows"], report["published"]) == (0, True, 60, 0)
    assert [(file["state"], file["verified"]) for file in report["files"]] == [("published", True)] * 2

    shown = run(topics, tmp_path, "--tenant", tenant)
    assert shown.exit_code == 0
    for said in ("signal: traces, guessed from columns", "part-00000.parquet", "0 to 29", " ok", "2 files, 60 rows"):
        assert said in shown.stdout
    assert "2 files with 60 rows read back from the table and found equal" in shown.stdout


def test_a_dry_run_prints_the_mapping_and_publishes_nothing(topics: Topics, tmp_path: Path, tenant: str) -> None:
    pq.write_table(spans(3).drop_columns(["flags"]), tmp_path / "x.parquet")
    shown = run(topics, tmp_path, "--tenant", tenant, "--dry-run")
    assert shown.exit_code == 0
    for said in ("flags: 0 everywhere, as OTLP means by leaving it out", "trace_id", "Nothing was published."):
        assert said in shown.stdout
    assert not topics.client.list_topics(f"{tenant}/")


def test_what_could_not_be_migrated_is_named_and_the_exit_code_is_1(
    topics: Topics, tmp_path: Path, tenant: str
) -> None:
    pq.write_table(spans(3), tmp_path / "x.parquet")
    (tmp_path / "y.parquet").write_bytes(b"PAR1")
    result = run(topics, tmp_path, "--tenant", tenant, "--no-wait")
    assert result.exit_code == 1
    assert "y.parquet: read Parquet: it does not end as a Parquet file does" in result.stdout
    assert "1 file of 2 could not be migrated" in result.stderr


def test_names_of_files_and_columns_do_not_control_the_terminal(topics: Topics, tmp_path: Path, tenant: str) -> None:
    rows = spans(3)
    names = ["\x1b[33mname" if name == "name" else name for name in rows.column_names]
    pq.write_table(rows.rename_columns(names), tmp_path / "\x1b[31mred.parquet")
    (tmp_path / "\x1b]0;title\x07.parquet").write_bytes(b"PAR1")
    given = (topics, tmp_path, "--tenant", tenant, "--rename", "\x1b[33mname=name", "--dry-run")
    result = run(*given)
    assert result.exit_code == 1
    assert [line for line in result.stdout.splitlines() if not line.isprintable()] == []
    for said in (r"\x1b[31mred.parquet", r"\x1b]0;title\x07.parquet: read Parquet", r"\x1b[33mname"):
        assert said in result.stdout
    assert {Path(file["path"]).name for file in report_of(run(*given, "--json"))["files"]} == {
        "\x1b[31mred.parquet",
        "\x1b]0;title\x07.parquet",
    }


def test_a_folder_of_two_signals_is_not_taken_for_one(topics: Topics, tmp_path: Path, tenant: str) -> None:
    pq.write_table(spans(3), tmp_path / "x.parquet")
    pq.write_table(pa.table({"time_unix_nano": [1], "body": ["a"], "severity_text": [""]}), tmp_path / "y.parquet")
    result = run(topics, tmp_path, "--tenant", tenant, "--no-wait")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the files are of several signals" in result.stderr


@pytest.mark.parametrize("wish", [("--ignore", "tpyo"), ("--rename", "tpyo=name")])
def test_a_mistyped_column_is_said(topics: Topics, tmp_path: Path, tenant: str, wish: tuple[str, str]) -> None:
    pq.write_table(spans(3), tmp_path / "x.parquet")
    result = run(topics, tmp_path, "--tenant", tenant, *wish)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no file has a column 'tpyo'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "Give --tenant or --topic."),
        (["--tenant", "a", "--topic", "b/c"], 2, "Give --tenant or --topic."),
        (["--topic", "b/c", "--signal", "logs"], 2, "--signal and --dataset belong to --tenant."),
        (["--tenant", "a", "--rename", "x"], 2, "'x' is not OLD=NEW"),
        (["--tenant", "../x"], 1, "is not a legal tenant"),
        (["--tenant", "a"], 1, "there are no Parquet files at"),
    ],
)
def test_wrong_use_is_said_in_one_sentence(
    topics: Topics, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    result = run(topics, tmp_path, *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


def test_files_in_a_bucket(
    topics: Topics, tmp_path: Path, tenant: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_tree(tmp_path / "old", files=3, rows=100)
    keys = {
        "region": REGION,
        "endpoint": s3_server.url,
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
    }
    settings = CloudSettings.model_validate({"backend": "s3", "root": f"s3://{s3_server.bucket}", **keys})
    store = open_object_store(settings, "")
    for path in (tmp_path / "old").rglob("*.parquet"):
        store.put(f"{tenant}/{path.relative_to(tmp_path / 'old').as_posix()}", path.read_bytes())
    store.put(f"{tenant}/_SUCCESS", b"")
    store.close()
    for name, value in (("BACKEND", "s3"), ("ROOT", "s3://elsewhere"), *keys.items()):
        monkeypatch.setenv(f"ICESTREAM_CLOUD__{name.upper()}", value)

    place = f"s3://{s3_server.bucket}/{tenant}"
    report = report_of(run(topics, place, "--tenant", tenant, "--no-wait", "--json"))
    assert [file["verified"] for file in report["files"]] == [True] * 3
    assert body(topics.client.read(f"{tenant}/traces")).equals(rows)
    one = run(topics, f"{place}/date=2026-01-01/*/*.parquet", "--tenant", tenant, "--no-wait", "--json")
    assert (report_of(one)["published"], one.exit_code) == (0, 0)
    for pattern, files in (("*/hour=0?/part-0000[01]*", 2), ("**/*.parquet", 3), ("**", 4)):
        shown = report_of(run(topics, f"{place}/{pattern}", "--tenant", tenant, "--dry-run", "--json"))
        assert len(shown["files"]) == files, pattern
    across = run(topics, f"{place}/date=2026-01-01/*", "--tenant", tenant, "--dry-run")
    assert "there are no Parquet files at" in across.stderr
    local = run(topics, tmp_path / "old", "--tenant", tenant, "--no-wait", "--json")
    assert report_of(local)["published"] == 0
