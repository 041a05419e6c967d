import json
import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from icestream.cli.config import command
from icestream.config import Settings, load_settings, reference


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ICESTREAM_")]:
        monkeypatch.delenv(name)


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(command, arguments, env=environ)


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.yaml"
    path.write_text("wal: {base_path: logs}\ncloud: {account_key: hunter2}\n")
    return str(path)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text("wal: {sync_mode: sometimes}\nlgo: {}\n")
    return str(path)


def test_show_prints_yaml_that_loads_again(tmp_path: Path) -> None:
    result = run("show")
    assert result.exit_code == 0
    path = tmp_path / "shown.yaml"
    path.write_text(result.stdout)
    assert load_settings(path, environ={}) == Settings()


def test_show_takes_file_and_environment_and_masks_secrets(good: str) -> None:
    result = run("show", "--config", good, ICESTREAM_WAL__SYNC_MODE="os")
    shown = yaml.safe_load(result.stdout)
    assert (shown["wal"]["dir"], shown["wal"]["sync_mode"]) == ("logs", "os")
    assert "hunter2" not in result.output


def test_show_says_where_values_are_from(good: str) -> None:
    lines = run("show", "--origin", "--config", good).stdout.splitlines()
    assert f'  dir: "logs"  # {good}, line 1' in lines
    assert '  sync_mode: "always"  # default' in lines


def test_show_prints_json(good: str) -> None:
    assert json.loads(run("show", "--json", "--config", good).stdout)["wal"]["dir"] == "logs"
    wal = json.loads(run("show", "--json", "--origin", "--config", good).stdout)["wal"]
    assert wal["dir"] == {"value": "logs", "origin": f"{good}, line 1"}
    assert wal["file_sync"]["interval_ms"] == {"value": 1000, "origin": "default"}


def test_the_file_may_be_named_by_the_environment(bad: str) -> None:
    assert run("check", ICESTREAM_CONFIG=bad).exit_code == 1


def test_check_says_ok(good: str) -> None:
    result = run("check", "--config", good)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("subcommand", ["check", "show"])
def test_problems_go_to_stderr_and_exit_with_1(bad: str, subcommand: str) -> None:
    result = run(subcommand, "--config", bad)
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 2
    assert "did you mean log?" in result.stderr


def test_a_file_that_is_not_there_exits_with_1_and_wrong_use_with_2(tmp_path: Path) -> None:
    assert run("check", "--config", str(tmp_path / "none.yaml")).exit_code == 1
    assert run("check", "--confg", "x").exit_code == 2


def test_check_reports_to_machines(bad: str, good: str) -> None:
    result = run("check", "--json", "--config", bad)
    report = json.loads(result.stdout)
    assert (result.exit_code, report["ok"]) == (1, False)
    assert {problem["key"] for problem in report["problems"]} == {"wal.sync_mode", "lgo"}
    assert json.loads(run("check", "--json", "--config", good).stdout) == {"ok": True, "problems": []}


def test_docs_prints_the_reference() -> None:
    assert run("docs").stdout == reference()


@pytest.mark.parametrize("arguments", [(), ("show",), ("check",), ("docs",)])
def test_help_has_an_example(arguments: tuple[str, ...]) -> None:
    assert "Example: " in run(*arguments, "--help").stdout
