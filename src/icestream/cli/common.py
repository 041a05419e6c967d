"""Options that several commands share, and output for machines."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from icestream.model.callers import TOKEN_VARIABLE
from icestream.model.errors import InvalidRequestError
from icestream.model.offsets import FORMS, StartPosition

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_BROKER = "grpc://127.0.0.1:8815"

_address_option = click.option(
    "--broker",
    metavar="URL",
    envvar="ICESTREAM_BROKER",
    default=DEFAULT_BROKER,
    show_default=True,
    show_envvar=True,
    help="The broker's address.",
)


def _keep_token(context: click.Context, _option: click.Parameter, token: str | None) -> None:
    """Put it where every client of this process looks for one, for as long as the command runs."""
    if token is None:
        return
    before = os.environ.get(TOKEN_VARIABLE)
    os.environ[TOKEN_VARIABLE] = token

    def put_back() -> None:
        os.environ.pop(TOKEN_VARIABLE, None)
        if before is not None:
            os.environ[TOKEN_VARIABLE] = before

    context.call_on_close(put_back)


_token_option = click.option(
    "--token",
    metavar="TOKEN",
    envvar=TOKEN_VARIABLE,
    show_envvar=True,
    expose_value=False,
    callback=_keep_token,
    help="What the broker knows this caller by, where it asks. Others can see command lines: better use the variable.",
)


def broker_option(command: Command) -> Command:
    """`--broker` as a parameter, and `--token` for all clients that the command opens."""
    return _address_option(_token_option(command))


data_option = click.option(
    "--data", type=click.Path(path_type=Path), metavar="DIR", help="Where everything is kept (data_dir)."
)

fresh_option = click.option(
    "--fresh/--committed",
    default=True,
    show_default=True,
    help="See what is not in the tables yet too, or only what is committed to them.",
)

no_color_option = click.option(
    "--no-color", is_flag=True, help="No colours; without a terminal, or with NO_COLOR set, there are none."
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")

config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar="ICESTREAM_CONFIG",
    help="Settings file (YAML).  [default: ICESTREAM_CONFIG, or none]",
)


def print_json(value: Any) -> None:
    """One line."""
    click.echo(json.dumps(value, ensure_ascii=False))


# --------------------
# `--from`: where reading starts.


def parse_start(_ctx: click.Context, _param: click.Parameter, value: str) -> StartPosition:
    """One of the forms of a start position; a time without a zone is UTC."""
    try:
        return StartPosition.parse(value)
    except InvalidRequestError as error:
        if value.startswith("tag:") and value != "tag:":
            raise click.BadParameter(error.message) from None
        raise click.BadParameter(f"{value!r} is none of: {FORMS}") from None


# --------------------
# Commands that work on tables in a process of their own need a catalog that other processes see.


def leave_stdout() -> None:
    """Let what is still buffered go nowhere: nobody reads our output any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
