"""Options that several commands share."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from icestream.model.callers import TOKEN_VARIABLE
from icestream.model.enums import ClosedSet
from icestream.model.errors import InvalidRequestError
from icestream.model.names import DEFAULT_URL
from icestream.model.offsets import FORMS, StartPosition

Command = TypeVar("Command", bound=Callable[..., Any])

POSITION = "earliest|latest|OFFSET|TIMESTAMP|snapshot:ID|tag:NAME"
"""The forms of a start position, as usage lines show them."""

_address_option = click.option(
    "--broker",
    metavar="URL",
    envvar="ICESTREAM_BROKER",
    default=DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    help="The broker's address.",
)


_token_option = click.option(
    "--token",
    metavar="TOKEN",
    envvar=TOKEN_VARIABLE,
    show_envvar=True,
    help="The token for a broker that requires one. Other users can see command lines: prefer the variable.",
)


def broker_option(command: Command) -> Command:
    """Add `--broker` and `--token`. The command gets both as one `BrokerEndpoint`, named `broker`."""

    @functools.wraps(command)
    def with_endpoint(*args: Any, broker: str, token: str | None, **options: Any) -> Any:
        # Imported here: `--help`, and commands that need no broker, do not load Arrow.
        from icestream.client import BrokerEndpoint  # noqa: PLC0415

        return command(*args, broker=BrokerEndpoint(broker, token=token), **options)

    return cast("Command", _address_option(_token_option(with_endpoint)))


def choices(values: type[ClosedSet]) -> click.Choice[str]:
    """Return the type of an option that takes one of `values`; the command gets its text."""
    return click.Choice([value.value for value in values])


data_option = click.option(
    "--data", type=click.Path(path_type=Path), metavar="DIR", help="The broker's data directory (data_dir)."
)

config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar="ICESTREAM_CONFIG",
    help="Settings file (YAML).  [default: ICESTREAM_CONFIG, or none]",
)

fresh_option = click.option(
    "--fresh/--committed",
    default=True,
    show_default=True,
    help="Include rows that are not in the tables yet, or read committed rows only.",
)

no_color_option = click.option(
    "--no-color", is_flag=True, help="Print no colours. Pipes, files and NO_COLOR turn them off as well."
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def catalog_options(command: Command) -> Command:
    """Add `--catalog`, `--config` and `--data`, for commands that also work without a broker."""
    for option in (
        click.option(
            "--data",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="With --catalog: the data directory (data_dir).",
        ),
        config_option,
        click.option(
            "--catalog",
            is_flag=False,
            flag_value="",
            metavar="[URI]",
            help="Read the tables without a broker, through the catalog at URI; without URI, the one in the settings.",
        ),
    ):
        command = option(command)
    return command


def parse_start(_ctx: click.Context, _param: click.Parameter, value: str) -> StartPosition:
    """Parse a start position. A time without a zone is UTC."""
    try:
        return StartPosition.parse(value)
    except InvalidRequestError as error:
        if value.startswith("tag:") and value != "tag:":
            raise click.BadParameter(error.message) from None
        raise click.BadParameter(f"{value!r} is none of: {FORMS}") from None
