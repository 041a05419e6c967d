"""`--broker` and `--token`: every command that talks to a broker takes both as one object, and hides the token."""

import click
import pytest
from click.testing import CliRunner

from icestream.cli.main import cli
from icestream.cli.options import broker_option
from icestream.client import BrokerEndpoint

SECRET = "a-secret-token"


def commands(group: click.Group, context: click.Context) -> list[click.Command]:
    found: list[click.Command] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found += commands(command, context) if isinstance(command, click.Group) else [command]
    return found


def test_every_command_that_takes_a_broker_takes_a_token() -> None:
    with click.Context(cli) as context:
        options = [{option.name for option in command.params} for command in commands(cli, context)]
    with_broker = [names for names in options if "broker" in names]
    assert len(with_broker) > 15
    assert all("token" in names for names in with_broker)


@click.command
@broker_option
def shows_its_token(broker: BrokerEndpoint) -> None:
    click.echo(f"{broker.url} {broker.token}")


@pytest.mark.parametrize(
    ("arguments", "environ", "token"),
    [
        ([], {}, "None"),
        (["--token", "given-token"], {}, "given-token"),
        ([], {"ICESTREAM_TOKEN": "token-of-env"}, "token-of-env"),
        (["--token", "given-token"], {"ICESTREAM_TOKEN": "token-of-env"}, "given-token"),
    ],
)
def test_the_command_gets_it_with_the_address(arguments: list[str], environ: dict[str, str], token: str) -> None:
    runner = CliRunner(env={"ICESTREAM_TOKEN": None, **environ})
    result = runner.invoke(shows_its_token, ["--broker", "grpc://b", *arguments])
    assert result.output == f"grpc://b:8815 {token}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--broker", "grpc://127.0.0.1:1"], ["--broker", "no://address"]])
def test_help_and_errors_do_not_show_it(arguments: list[str]) -> None:
    for more, environ in (([], {"ICESTREAM_TOKEN": SECRET}), (["--token", SECRET], {})):
        result = CliRunner(env=environ).invoke(cli, ["topic", "list", *more, *arguments])
        assert SECRET not in result.output
        assert result.exit_code == (0 if arguments == ["--help"] else 1)


def test_what_can_be_no_token_is_one_sentence() -> None:
    result = CliRunner().invoke(cli, ["topic", "list", "--token", "two words"])
    assert result.exit_code == 1
    assert "the token has characters that no token has" in result.output
    assert "two words" not in result.output
