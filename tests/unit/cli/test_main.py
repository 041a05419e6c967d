import errno
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module as real_import
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from icestream.cli import main
from icestream.cli.main import COMMANDS, Commands, cli
from icestream.model.errors import TopicNotFoundError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="icestream")


class TestHelp:
    def test_lists_commands_without_importing_what_they_need(self) -> None:
        heavy = ("pyarrow", "pydantic", "rich", "starlette", "structlog", "yaml")
        program = (
            "import sys\n"
            "from icestream.cli.main import cli\n"
            "cli(['--help'], standalone_mode=False)\n"
            f"sys.exit(' '.join(name for name in {heavy} if name in sys.modules) or 0)\n"
        )
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr.strip()) == (0, "")
        assert "produce" in result.stdout

    @pytest.mark.parametrize("name", COMMANDS)
    def test_says_of_each_command_what_the_command_says_itself(self, name: str) -> None:
        context = click.Context(cli)
        command = cli.get_command(context, name)
        assert command is not None
        assert (command.name, command.get_short_help_str(limit=200)) == (name, COMMANDS[name])
        assert COMMANDS[name] in " ".join(run("--help").stdout.split())

    def test_leaves_out_a_command_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(COMMANDS, "absent", "Not there.")
        assert "absent" not in run("--help").stdout
        assert run("absent").exit_code == 2


def test_the_version_is_one_line() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("icestream ")


def test_a_command_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        if name == "icestream.cli.serve":
            raise ModuleNotFoundError("No module named 'pydantic'", name="pydantic")
        return real_import(name)

    monkeypatch.setattr(main, "import_module", missing)
    result = run("serve")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: serve needs the broker part: pip install 'icestream[broker]'\n"


Fails = Callable[[BaseException], Result]


@pytest.fixture
def failing() -> Fails:
    """Runs a command that ends with the given exception."""

    def run_failing(error: BaseException) -> Result:
        @click.command()
        def fail() -> None:
            raise error

        class Failing(Commands):
            def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
                del ctx, cmd_name
                return fail

        return CliRunner().invoke(Failing(), ["fail"])

    return run_failing


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "sentence"),
        [
            (TopicNotFoundError("there is no such topic", place="a/b"), "there is no such topic [a/b]"),
            (FileNotFoundError(errno.ENOENT, "No such file or directory", "x.txt"), "x.txt: No such file or directory"),
            (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
            (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero; ICESTREAM_DEBUG=1 shows the traceback"),
        ],
    )
    def test_are_one_sentence_on_stderr_and_exit_1(self, failing: Fails, error: Exception, sentence: str) -> None:
        result = failing(error)
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {sentence}\n")

    def test_an_interruption_exits_with_130(self, failing: Fails) -> None:
        result = failing(KeyboardInterrupt())
        assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")

    def test_a_closed_pipe_is_quiet(self, failing: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
        left = []
        monkeypatch.setattr(main, "discard_stdout", lambda: left.append(True))
        result = failing(BrokenPipeError(errno.EPIPE, "Broken pipe"))
        assert (result.exit_code, result.output, left) == (1, "", [True])

    def test_a_traceback_comes_only_on_request(self, failing: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ICESTREAM_DEBUG", "1")
        assert isinstance(failing(ZeroDivisionError()).exception, ZeroDivisionError)


def test_a_light_install_has_the_commands_of_a_client() -> None:
    broker_packages = (
        "prometheus_client",
        "pydantic",
        "starlette",
        "structlog",
        "uvicorn",
        "xxhash",
        "yaml",
    )
    program = (
        "import sys, click\n"
        f"sys.modules.update(dict.fromkeys({broker_packages}))\n"
        "from icestream.cli.main import COMMANDS, cli\n"
        "for name in [name for name in COMMANDS if name != 'bench']:\n"
        "    try:\n"
        "        cli.get_command(click.Context(cli), name)\n"
        "        print(name, 'works')\n"
        "    except click.ClickException as error:\n"
        "        print(error.message)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    client = {"topic", "produce", "consume", "sql", "trace", "logs", "subscription", "stats", "top"}
    assert result.stdout.splitlines() == [
        f"{name} works" if name in client else f"{name} needs the broker part: pip install 'icestream[broker]'"
        for name in COMMANDS
        if name != "bench"  # a package of its own
    ]
