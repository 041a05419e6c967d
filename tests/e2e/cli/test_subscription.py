"""`icestream subscription …` and `icestream consume --subscription`, as people and scripts use them."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
Publish = Callable[[str, bytes], None]
LINES = b"".join(b"%d\n" % number for number in range(10))


def answer(result: "subprocess.CompletedProcess[bytes]") -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_subscription_goes_on_behind_what_was_written(icestream: Run, publish: Publish, topic: str) -> None:
    publish(topic, LINES)
    consume = ("consume", topic, "--subscription", "s", "--format", "raw")
    assert icestream(*consume, "--max", "4").stdout == b"0\n1\n2\n3\n"
    assert icestream(*consume).stdout == b"4\n5\n6\n7\n8\n9\n"
    again = icestream(*consume)
    assert (again.returncode, again.stdout, again.stderr) == (0, b"", b"")
    publish(topic, b"new\n")
    assert icestream(*consume).stdout == b"new\n"


def test_lines_have_the_shape_of_those_without_a_subscription(icestream: Run, publish: Publish, topic: str) -> None:
    publish(topic, b"a\n\xff\n")
    assert icestream("consume", topic, "--subscription", "s").stdout == icestream("consume", topic).stdout


def test_a_type_a_filter_and_a_start_are_kept(icestream: Run, publish: Publish, topic: str) -> None:
    publish(topic, LINES)
    options = ("--subscription", "s", "--type", "shared", "--filter", "offset <> 7", "--from", "5", "--format", "raw")
    assert icestream("consume", topic, *options).stdout == b"5\n6\n8\n9\n"
    described = answer(icestream("subscription", "describe", topic, "s", "--json"))
    assert (described["type"], described["filter"]) == ("shared", "offset <> 7")
    assert (described["floor_offset"], described["lag_messages"], described["consumers"]) == (10, 0, [])


def test_a_filter_works_without_a_subscription_too(icestream: Run, publish: Publish, topic: str) -> None:
    publish(topic, LINES)
    assert icestream("consume", topic, "--filter", "offset >= 8", "--format", "raw").stdout == b"8\n9\n"


def test_make_list_move_and_delete(icestream: Run, publish: Publish, topic: str) -> None:
    publish(topic, LINES)
    made = icestream("subscription", "create", topic, "s", "--type", "shared", "--from", "latest", "--ack-timeout", "5")
    assert (made.returncode, made.stdout) == (0, f"s of {topic} is ready at offset 10\n".encode())
    assert answer(icestream("subscription", "create", topic, "t", "--json"))["floor_offset"] == 0
    listed = answer(icestream("subscription", "list", topic, "--json"))["subscriptions"]
    assert [(found["subscription"], found["type"]) for found in listed] == [("s", "shared"), ("t", "exclusive")]
    assert listed[0]["options"]["ack_timeout_ms"] == 5000
    shown = icestream("subscription", "list").stdout.decode()
    assert topic in shown
    assert "shared" in shown
    assert icestream("subscription", "seek", topic, "s", "--to", "8").stdout == b"s continues at offset 8\n"
    assert icestream("consume", topic, "--subscription", "s", "--format", "raw").stdout == b"8\n9\n"
    assert answer(icestream("subscription", "reset", topic, "s", "--json"))["offset"] == 0
    assert icestream("consume", topic, "--subscription", "s", "--format", "raw").stdout == LINES
    text = icestream("subscription", "describe", topic, "s").stdout.decode()
    assert "all below 10" in text
    kept = icestream("subscription", "delete", topic, "s", stdin=b"n\n")
    assert kept.returncode == 1
    assert icestream("subscription", "delete", topic, "s", "--yes").stdout == f"s of {topic} is deleted\n".encode()
    gone = icestream("subscription", "describe", topic, "s")
    assert gone.returncode == 1
    assert b"no such subscription" in gone.stderr
    assert gone.stderr.count(b"\n") == 1


def test_following_ends_with_an_interrupt_and_forgets_nothing(
    environ: dict[str, str], icestream: Run, publish: Publish, topic: str
) -> None:
    publish(topic, LINES)
    process = subprocess.Popen(
        [sys.executable, "-m", "icestream.cli", "consume", topic, "--subscription=s", "--follow", "--format=raw"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )
    with process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(10)] == LINES.splitlines(keepends=True)
        publish(topic, b"more\n")
        assert process.stdout.readline() == b"more\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (130, b"")
    assert icestream("consume", topic, "--subscription", "s").stdout == b""


def test_what_nobody_read_is_not_acknowledged(
    environ: dict[str, str], icestream: Run, publish: Publish, topic: str
) -> None:
    publish(topic, LINES)
    process = subprocess.Popen(
        [sys.executable, "-m", "icestream.cli", "consume", topic, "--subscription=s", "--follow"],
        stdout=subprocess.PIPE,
        env=environ,
    )
    with process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 0
    assert icestream("consume", topic, "--subscription", "s", "--format", "raw").stdout == LINES


def test_mistakes_are_said_in_one_sentence(icestream: Run, publish: Publish, topic: str) -> None:
    publish(topic, b"x\n")
    wrong_use = icestream("consume", topic, "--type", "shared")
    assert wrong_use.returncode == 2
    assert b"--subscription" in wrong_use.stderr
    for arguments in (
        ("consume", "e2e/nothing", "--subscription", "s"),
        ("consume", topic, "--subscription", "a/b"),
        ("consume", topic, "--subscription", "s", "--filter", "nonsense ="),
        ("subscription", "create", "e2e/nothing", "s"),
        ("subscription", "seek", topic, "nothing", "--to", "0"),
        ("subscription", "delete", topic, "nothing", "--yes"),
    ):
        result = icestream(*arguments)
        assert result.returncode == 1, arguments
        assert result.stderr.startswith(b"Error: ")
        assert result.stderr.count(b"\n") == 1
    for missing in (("seek", topic, "s"), ("seek", topic, "s", "--to", "sometime"), ("create", topic)):
        assert icestream("subscription", *missing).returncode == 2
