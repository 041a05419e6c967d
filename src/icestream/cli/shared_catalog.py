"""Commands that work on tables in a process of their own need a catalog that other processes see."""

import click

from icestream.config import Settings


def need_shared_catalog(settings: Settings) -> None:
    """Refuse a catalog in memory: a command would find its own, which is empty, and what it wrote would be gone."""
    if settings.catalog.type == "memory":
        raise click.ClickException(
            "catalog.type is 'memory', and a catalog in memory cannot be shared with another process: "
            "set catalog.type to sql, rest or glue"
        )
