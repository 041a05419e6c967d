"""`icestream`: finds the command, and turns every error into one sentence and an exit code.

A command `x` is the object `command` in `icestream.cli.x`, or in the module that `_MODULES` names. The module is
imported when the command runs: so `--help` is quick, and the light client works without the broker's packages.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click

from icestream import __version__
from icestream.model.errors import IcestreamError

COMMANDS = {
    "serve": "Run the broker, and the Spark pipeline that writes its topics to Iceberg tables.",
    "demo": "Show publishing, reading, a crash and the Iceberg table on this machine, and verify all counts.",
    "topic": "Create, list, change, recover and delete topics.",
    "produce": "Publish the lines of a file or of stdin.",
    "consume": "Write a topic's messages to stdout.",
    "sql": "Query topics with SQL.",
    "trace": "Print a trace as a tree, with a bar for the time of each span.",
    "logs": "Print a tenant's log records, oldest first.",
    "subscription": "List, create, move and delete subscriptions.",
    "pipeline": "Write the log to Iceberg tables with Spark.",
    "migrate": "Publish existing files to topics.",
    "maintain": "Compact and clean up tables with Iceberg's procedures on Spark.",
    "table": "Bring tables back into a lost catalog; accept rows that another engine deleted.",
    "quarantine": "Show and retry frames that the pipeline could not write.",
    "verify": "Check that log, cloud objects and table hold the same messages.",
    "stats": "Print statistics of topics and broker.",
    "top": "Watch topics live: rates, sizes, offsets, and the subscriptions with the largest lag.",
    "cloud": "Show a topic's objects in the object store.",
    "wal": "Inspect and repair the files of a log.",
    "config": "Show and check settings; print their reference.",
    "bench": "Measure this installation, and the hardware without it.",
}
"""What `icestream --help` lists, in this order, without importing the commands."""

_MODULES = {
    "trace": "icestream.cli.telemetry.trace",
    "logs": "icestream.cli.telemetry.logs",
    "bench": "icestream_bench.command",  # in a package of its own
}
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


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
                raise click.ClickException(f"{cmd_name} is in a package of its own: pip install icestream-{cmd_name}")
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
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            discard_stdout()
            raise click.exceptions.Exit(1) from None
        except Exception as error:
            if os.environ.get("ICESTREAM_DEBUG"):
                raise
            raise click.ClickException(sentence(error)) from error


def sentence(error: Exception) -> str:
    """Return the error as one sentence."""
    if isinstance(error, IcestreamError):
        return str(error)
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"{error.filename}: {reason}" if error.filename else reason
    return f"{type(error).__name__}: {error}; ICESTREAM_DEBUG=1 shows the traceback"


def discard_stdout() -> None:
    """Send buffered output nowhere: the reader of the pipe has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
