"""Progress of work in steps, on stderr: a bar on a terminal, elsewhere a line now and then."""

import time
from typing import Self

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from icestream.cli.display import console
from icestream.cli.formatting import count_text, rate_text

_LINE_EVERY_S = 10.0


class Steps:
    """`done` grows whenever there is progress, whatever the step."""

    def __init__(self, *, line_every_s: float = _LINE_EVERY_S) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"))
        self._bars = Progress(*columns, TimeRemainingColumn(), console=console(err=True), transient=True)
        self._task: TaskID | None = None
        self._line_every_s = line_every_s
        self.done = 0
        self._what, self._unit = "", ""
        self._reached, self._total = 0.0, 0
        self._began = self._told = time.monotonic()

    def begin(self, what: str, total: int, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._reached = 0.0
        self._began = self._told = time.monotonic()
        if self._bars.console.is_terminal:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task = self._bars.add_task(what, total=total, said="")

    def advance(self, amount: float) -> None:
        self._reached += amount
        self.done += 1
        now = time.monotonic()
        if self._task is not None:
            self._bars.update(self._task, completed=self._reached, said=self._said(now))
        elif now - self._told >= self._line_every_s:
            self._told = now
            click.echo(f"{self._what}: {self._said(now)}", err=True)

    def _said(self, now: float) -> str:
        speed = rate_text(self._reached, now - self._began)
        return f"{count_text(int(self._reached))} of {count_text(self._total)} {self._unit}, {speed}"

    def __enter__(self) -> Self:
        if self._bars.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars.console.is_terminal:
            self._bars.stop()
