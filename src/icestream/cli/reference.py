"""`python -m icestream.cli.reference`: prints all commands as Markdown, from their click definitions."""

import inspect
from collections.abc import Iterator

import click

from icestream.cli.main import cli

_HEAD = """\
# Commands

Printed by `python -m icestream.cli.reference`; change the commands, not this page.

Every command exits with 0 on success, with 1 on failure and with 2 on wrong use. An error is one sentence on stderr.
The broker's settings and their environment variables are in [settings](settings.md).
"""


def reference() -> str:
    parts = [_HEAD, "\n".join(_index())]
    context = click.Context(cli, info_name="icestream")
    parts += ["\n".join(_section(command, inner, depth)) for inner, command, depth in _commands(context, cli)]
    return "\n".join(parts) + "\n"


def _index() -> Iterator[str]:
    yield "| command | does |"
    yield "|---|---|"
    for context, command, depth in _commands(click.Context(cli, info_name="icestream"), cli):
        if depth == 0:
            path = context.command_path
            yield f"| [`{path}`](#{path.replace(' ', '-')}) | {command.get_short_help_str(limit=200)} |"
    yield ""


def _commands(
    context: click.Context, group: click.Group, depth: int = 0
) -> Iterator[tuple[click.Context, click.Command, int]]:
    """Yield every command below `group` with its context, in the order of the help."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield inner, command, depth
        if isinstance(command, click.Group):
            yield from _commands(inner, command, depth + 1)


def _section(command: click.Command, context: click.Context, depth: int) -> Iterator[str]:
    yield f"{'#' * (depth + 2)} {context.command_path}"
    yield ""
    yield "```"
    yield f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}"
    yield "```"
    yield ""
    yield inspect.cleandoc(command.help or "").replace("\b\n", "")
    yield ""
    options = [row for parameter in command.get_params(context) if (row := _option(parameter, context))]
    if options:
        yield "| option | |"
        yield "|---|---|"
        yield from options
        yield ""
    if command.epilog:
        yield "Example:"
        yield ""
        yield "```sh"
        yield command.epilog.removeprefix("Example: ")
        yield "```"
        yield ""


def _option(parameter: click.Parameter, context: click.Context) -> str | None:
    if not isinstance(parameter, click.Option) or "--help" in parameter.opts:
        return None
    record = parameter.get_help_record(context)
    if record is None:
        return None
    name, text = (part.replace("|", "\\|") for part in record)
    return f"| `{name}` | {' '.join(text.split())} |"


if __name__ == "__main__":
    click.echo(reference(), nl=False)
