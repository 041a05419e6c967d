"""Output for people: tables and progress, on terminals and elsewhere."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def console(*, err: bool = False) -> Console:
    """For tables and progress. Not a terminal: no colours, no wrapping to a width that nobody has.

    Brackets are brackets, not markup: places in errors stand in them.
    """
    made = Console(stderr=err, highlight=False, markup=False, emoji=False)
    if made.is_terminal:
        return made
    return Console(stderr=err, highlight=False, markup=False, emoji=False, width=200, no_color=True)


def table(*columns: str, numbers: tuple[str, ...] = (), title: str | None = None) -> Table:
    """An empty table; the columns in `numbers` are set to the right."""
    made = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return made
