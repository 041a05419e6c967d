"""`icestream`: finds the command, and turns whatever goes wrong into one sentence and an exit code.

A command `x` is the object `command` in `icestream.cli.x`, or in the module that `_MODULES` names. Its module is
imported when the command runs, so that `--help` is quick and the light client works without the broker's packages.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click

from icestream import __version__
from icestream.cli.common import leave_stdout
from icestream.model.errors import IcestreamError

COMMANDS = {
    "serve": "Run the broker, and beside it the Spark pipeline that turns its topics into Iceberg tables.",
    "demo": "Show the whole story on this machine, and verify it.",
    "topic": "Make, list, change, recover and delete topics.",
    "produce": "Publish lines of a file or of stdin.",
    "consume": "Write a topic's messages to stdout.",
    "sql": "Query topics with SQL.",
    "trace": "Print a trace as a tree, with a bar for the time of each span.",
    "logs": "Print a tenant's log records, oldest first.",
    "subscription": "Look at subscriptions, make, move and delete them.",
    "pipeline": "Turn the log into Iceberg tables with Spark.",
    "migrate": "Bring existing files into topics and their tables.",
    "maintain": "Keep tables fast and small, with Iceberg's own procedures on Spark.",
    "quarantine": "Look at what the pipeline could not write and has put aside.",
    "verify": "Prove that log, cloud and table hold the same messages.",
    "stats": "Print figures of topics and broker.",
    "top": "Watch topics live: rates, sizes, offsets, and the subscriptions that are furthest behind.",
    "cloud": "Look into a topic's objects in the cloud.",
    "wal": "Look into a log's files, and repair them.",
    "config": "Show and check settings, and print their reference.",
    "bench": "Measure this installation, beside what the hardware does without it.",
}
"""What `icestream --help` lists, in its order, without importing any of it."""

_MODULES = {
    "trace": "icestream.cli.telemetry.trace",
    "logs": "icestream.cli.telemetry.logs",
    "bench": "icestream_bench.command",  # a package of its own: it measures, and no installation needs it
}
_INTERRUPTED = 130


def _module_of(name: str) -> str:
    return _MODULES.get(name, f"icestream.cli.{name}")


def _is_installed(name: str) -> bool:
    module = _module_of(name)
    return find_spec(module.partition(".")[0]) is not None and find_spec(module) is not None


class Commands(click.Group):
    """A group that imports a command's module when the command is run."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if _is_installed(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            if _MODULES.get(cmd_name, "").startswith("icestream_"):
                raise click.ClickException(f"{cmd_name} is a package of its own: pip install icestream-{cmd_name}")
            return None
        try:
            command = import_module(_module_of(cmd_name)).command
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "icestream":
                raise
            raise click.ClickException(f"{cmd_name} needs the broker part: pip install 'icestream[broker]'") from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            leave_stdout()
            raise click.exceptions.Exit(1) from None
        except Exception as error:
            if os.environ.get("ICESTREAM_DEBUG"):
                raise
            raise click.ClickException(sentence(error)) from error


def sentence(error: Exception) -> str:
    """What to tell the user."""
    if isinstance(error, IcestreamError):
        return str(error)
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"{error.filename}: {reason}" if error.filename else reason
    return f"{type(error).__name__}: {error}; ICESTREAM_DEBUG=1 shows where this comes from"


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: icestream demo",
)
@click.version_option(__version__, prog_name="icestream", message="%(prog)s %(version)s")
def cli() -> None:
    """Pub/sub topics that are Apache Iceberg tables."""


def main() -> None:
    cli(prog_name="icestream")


if __name__ == "__main__":
    main()
