"""The settings of commands that work without the broker: on its files, its catalog and its object store.

Only commands of the broker install import this module: settings need pydantic.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import click

from icestream.config import Settings, SettingsError, load_settings

_FOR_OTHERS = 0o077


def read_settings(config_file: Path | None, flags: Mapping[str, object]) -> Settings:
    """Load the settings; a problem ends the command with one sentence."""
    try:
        return load_settings(config_file, dict(flags))
    except SettingsError as error:
        raise click.ClickException(str(error)) from None


def catalog_settings(catalog: str, config_file: Path | None, data: Path | None) -> Settings:
    """Load the settings; `catalog`, unless empty, is the URI of another catalog: REST or a database."""
    flags: dict[str, object] = {"data_dir": data}
    if catalog:
        if "://" not in catalog:
            raise click.UsageError(
                f"{catalog!r} is not a catalog's address; leave it out, or give one such as sqlite:///catalog.db"
            )
        flags |= {"catalog.uri": catalog, "catalog.type": "rest" if catalog.startswith("http") else "sql"}
    return read_settings(config_file, flags)


def make_files_private() -> None:
    """Let this process and its children create files that only their own user can read.

    Files hold messages, and several libraries create them with a mode that others can read.
    """
    os.umask(os.umask(0) | _FOR_OTHERS)


def require_shared_catalog(settings: Settings) -> None:
    """Refuse a catalog in memory: this process would have an empty one of its own."""
    if settings.catalog.type == "memory":
        raise click.ClickException(
            "catalog.type is 'memory', and a catalog in memory cannot be shared with another process: "
            "set catalog.type to sql, rest or glue"
        )
