"""Options that several commands share, and output for machines."""

import json
from pathlib import Path
from typing import Any

import click

DEFAULT_BROKER = "grpc://127.0.0.1:8815"

broker_option = click.option(
    "--broker",
    metavar="URL",
    envvar="ICESTREAM_BROKER",
    default=DEFAULT_BROKER,
    show_default=True,
    show_envvar=True,
    help="The broker's address.",
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
