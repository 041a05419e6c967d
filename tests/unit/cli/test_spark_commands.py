from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from icestream.cli.main import cli


def run(command: str, directory: Path, *arguments: str, settings: str = "{}") -> Result:
    file = directory / "broker.yaml"
    file.write_text(settings)
    given = [command, *arguments, "--config", str(file), "--data", str(directory / "data")]
    return CliRunner().invoke(cli, given)


COMMANDS = [("pipeline", ("--once", "--broker", "127.0.0.1:1")), ("maintain", ("--all",))]


@pytest.mark.parametrize(("command", "arguments"), COMMANDS)
def test_a_catalog_in_memory_is_refused(tmp_path: Path, command: str, arguments: tuple[str, ...]) -> None:
    result = run(command, tmp_path, *arguments, settings="catalog: {type: memory}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: catalog.type is 'memory', and a catalog in memory cannot be shared with another process: "
        "set catalog.type to sql, rest or glue\n"
    )


@pytest.mark.parametrize(("command", "arguments"), COMMANDS)
def test_a_master_that_spark_does_not_know_is_refused(tmp_path: Path, command: str, arguments: tuple[str, ...]) -> None:
    result = run(command, tmp_path, *arguments, "--master", "nonsense")
    assert (result.exit_code, result.stdout) == (1, "")
    assert ".master (flag) is 'nonsense'; it takes `local`, `local[N]`" in result.stderr
    assert "Java" not in result.stderr
