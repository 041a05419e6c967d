"""What is wrong with the settings, all of it at once."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One sentence that names the key, where it was given, what was given and what is allowed."""

    key: str
    place: str
    message: str

    def __str__(self) -> str:
        return self.message


class SettingsError(Exception):
    """The settings cannot be used. `problems` has one entry for each thing to repair."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)
