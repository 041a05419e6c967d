"""`icestream config`: shows and checks settings, and prints their reference."""

import json
from pathlib import Path

import click

from icestream.cli.options import config_option
from icestream.config import Loaded, SettingsError, load_with_origins, reference, to_tree, to_yaml


@click.group(name="config", epilog="Example: icestream config check --config broker.yaml")
def command() -> None:
    """Show and check settings; print their reference."""


@command.command(epilog="Example: ICESTREAM_WAL__SYNC_MODE=os icestream config show --origin")
@config_option
@click.option("--json", "as_json", is_flag=True, help="JSON instead of YAML.")
@click.option("--origin", is_flag=True, help="Print where each value comes from.")
def show(config_file: Path | None, as_json: bool, origin: bool) -> None:
    """Print the effective settings. Secrets are masked."""
    loaded = _load(config_file)
    if as_json:
        click.echo(json.dumps(to_tree(loaded, origins=origin), indent=2, ensure_ascii=False))
    else:
        click.echo(to_yaml(loaded, origins=origin), nl=False)


@command.command(epilog="Example: icestream config check --config broker.yaml")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
def check(config_file: Path | None, as_json: bool) -> None:
    """Print `ok`, or every problem in the file and the environment. Exits with 1 if there is any."""
    if as_json:
        _check_json(config_file)
        return
    _load(config_file)
    click.echo("ok")


@command.command(epilog="Example: icestream config docs > settings.md")
def docs() -> None:
    """Print the reference of all settings as Markdown."""
    click.echo(reference(), nl=False)


def _load(config_file: Path | None) -> Loaded:
    try:
        return load_with_origins(config_file)
    except SettingsError as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(1) from None


def _check_json(config_file: Path | None) -> None:
    problems = []
    try:
        load_with_origins(config_file)
    except SettingsError as error:
        problems = [{"key": item.key, "place": item.place, "message": item.message} for item in error.problems]
    click.echo(json.dumps({"ok": not problems, "problems": problems}, indent=2, ensure_ascii=False))
    if problems:
        raise click.exceptions.Exit(1)
