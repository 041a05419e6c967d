"""Says on stderr when the broker (or the catalog) of a command that follows is away, and when it is back; once each."""

import click

from icestream.model.errors import IcestreamError


class Presence:
    def __init__(self, what: str) -> None:
        self._what = what
        self._is_away = False

    def note(self, interruption: IcestreamError | None) -> None:
        """Why nothing comes at the moment, or None while all is well."""
        if interruption is not None and not self._is_away:
            click.echo(f"{self._what} is away; waiting for it", err=True)
        elif interruption is None and self._is_away:
            click.echo(f"{self._what} is back", err=True)
        self._is_away = interruption is not None
