"""Says on stderr why the broker accepts nothing while `produce` tries again."""

from collections.abc import Callable

import click

from icestream.cli.beside import Beside
from icestream.model.errors import IcestreamError

_PATIENCE_S = 2.0
_LOOK_EVERY_S = 0.25


class RefusalWatch(Beside):
    """Tells what the broker answers once nothing was accepted for some seconds, and again when the reason changes.

    `trouble` is asked with these seconds, as `Producer.trouble` is. Reasons are told apart by their code: figures in a
    sentence, such as the room on a disk, change all the time.
    """

    def __init__(
        self,
        trouble: Callable[[float], IcestreamError | None],
        *,
        patience_s: float = _PATIENCE_S,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        super().__init__("refusal-watch")
        self._trouble = trouble
        self._patience_s = patience_s
        self._look_every_s = look_every_s

    def _watch(self) -> None:
        told = None
        while not self._ended.wait(self._look_every_s):
            error = self._trouble(self._patience_s)
            if error is not None and error.code != told:
                told = error.code
                click.echo(f"waiting: {error.code}: {error.message}; trying again", err=True)
