"""What `trace` and `logs` are told on the command line."""

import click
import pytest
from click.testing import CliRunner, Result

from icestream.cli.main import cli
from icestream.cli.telemetry.common import parse_trace_id, telemetry_topic
from icestream.cli.telemetry.logs import moment_us

DIGITS = "5b8aa5a2d2c872e8321cf37308d69df2"
CONTEXT, PARAMETER = click.Context(click.Command("x")), click.Option(["--x"])
NOW = 1_700_000_000_000_000
HOUR_US = 3_600_000_000


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--broker", "grpc://127.0.0.1:1"], prog_name="icestream")


@pytest.mark.parametrize(
    "text",
    [
        DIGITS,
        DIGITS.upper(),
        f" {DIGITS}\n",
        "5b8aa5a2-d2c8-72e8-321c-f37308d69df2",
        f"00-{DIGITS}-0102030405060708-01",
        f"01-{DIGITS.upper()}-0102030405060708-00-what-comes-later",
    ],
)
def test_a_trace_id_has_several_forms(text: str) -> None:
    assert parse_trace_id(CONTEXT, PARAMETER, text) == bytes.fromhex(DIGITS)


@pytest.mark.parametrize(
    "text",
    ["", "x", DIGITS[:-1], DIGITS + "0", DIGITS[:-1] + "g", "0" * 32, f"ff-{DIGITS}-0102030405060708-01", "٣" * 32],
)
def test_what_is_no_trace_id_is_wrong_use(text: str) -> None:
    result = run("trace", text, "--tenant", "acme")
    assert result.exit_code == 2
    assert "trace id" in result.stderr
    assert run("logs", "--trace", text, "--tenant", "acme").exit_code == 2


def test_topics_are_those_of_the_tenant_and_its_dataset() -> None:
    assert str(telemetry_topic("acme", None, "traces")) == "acme/traces"
    assert str(telemetry_topic("acme", "prod", "logs")) == "acme/prod_logs"


@pytest.mark.parametrize("name", ["", "a/b", "../up", 'a"b', "a'; --", "ü", "x" * 101])
@pytest.mark.parametrize("option", ["--tenant", "--dataset"])
def test_names_that_cannot_be_are_wrong_use(name: str, option: str) -> None:
    others = () if option == "--tenant" else ("--tenant", "acme")
    for command in (("trace", DIGITS), ("logs",)):
        result = run(*command, *others, option, name)
        assert result.exit_code == 2
        assert f"Invalid value for '{option}'" in result.stderr


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0s", NOW),
        ("15m", NOW - HOUR_US // 4),
        ("1h30m", NOW - HOUR_US * 3 // 2),
        ("1d", NOW - 24 * HOUR_US),
        ("2w", NOW - 14 * 24 * HOUR_US),
        ("999999999w", 0),
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1970-01-02", 24 * HOUR_US),
        ("1970-01-01 00:00:01.5", 1_500_000),
    ],
)
def test_a_moment_is_a_time_or_how_long_ago(text: str, moment: int) -> None:
    assert moment_us(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "m", "15", "-15m", "15 m", "1.5h", "yesterday", "latest", "tag:x", "2026-13-01"])
def test_what_is_no_moment_is_wrong_use(text: str) -> None:
    for option in ("--since", "--until"):
        result = run("logs", "--tenant", "acme", option, text)
        assert (result.exit_code, f"Invalid value for '{option}'" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--follow", "--until", "5m"), "--follow and --until exclude each other"),
        (("--since", "5m", "--until", "10m"), "--since must be before --until"),
        (("--grep", "(x"), "missing )"),
        (("--grep", "x{1000}{1000}"), "bad repetition"),
        (("--service", "\udcff"), "not text in UTF-8"),
        (("--severity", "loud"), "'loud' is not one of"),
        (("--max", "-1"), "-1 is not in the range"),
    ],
)
def test_wrong_use_of_logs_is_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    result = run("logs", "--tenant", "acme", *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize("command", [("trace", DIGITS), ("logs",)])
def test_a_tenant_is_needed(command: tuple[str, ...]) -> None:
    result = run(*command)
    assert (result.exit_code, "Missing option '--tenant'" in result.stderr) == (2, True)
