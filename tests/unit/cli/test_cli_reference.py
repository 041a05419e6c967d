from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from icestream.cli.main import cli
from icestream.cli.reference import reference

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


ALL = dict(commands(cli, "icestream"))


def test_the_page_in_the_repository_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run: python -m icestream.cli.reference > docs/cli.md"


@pytest.mark.parametrize("path", ALL)
def test_every_command_is_described_with_an_example(path: str) -> None:
    command = ALL[path]
    assert command.help
    assert command.epilog
    assert command.epilog.startswith("Example: ")
    assert "icestream" in command.epilog
    assert f"# {path}\n" in reference()


@pytest.mark.parametrize("path", ALL)
def test_every_option_is_described(path: str) -> None:
    for parameter in ALL[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts}"


def test_the_page_is_the_same_in_every_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = reference()
    monkeypatch.setenv("ICESTREAM_BROKER", "grpc://elsewhere:1")
    monkeypatch.setenv("COLUMNS", "40")
    assert reference() == before
