import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
Publish = Callable[[str, bytes], None]


def objects(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


@contextmanager
def following(environ: dict[str, str], topic: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "icestream.cli", "consume", topic, "--follow", "--timeout=60", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"no newline at the end", [b"no newline at the end"]),
        (b"\n\nx\n", [b"", b"", b"x"]),
        ("grüße\n日本語 🧊\n".encode(), ["grüße".encode(), "日本語 🧊".encode()]),
        (b"\xff\x00\x80\r\nabc\n", [b"\xff\x00\x80\r", b"abc"]),
    ],
    ids=["two", "no-newline", "empty", "unicode", "binary"],
)
def test_lines_come_back_as_they_went(icestream: Run, topic: str, content: bytes, messages: list[bytes]) -> None:
    sent = icestream("produce", topic, "--json", stdin=content)
    assert sent.returncode == 0, sent.stderr
    answer = json.loads(sent.stdout)
    assert answer.pop("seconds") >= 0
    assert answer == {"topic": topic, "count": len(messages), "first_offset": 0, "last_offset": len(messages) - 1}
    raw = icestream("consume", topic, "--format", "raw")
    assert (raw.returncode, raw.stdout, raw.stderr) == (0, b"".join(message + b"\n" for message in messages), b"")


def test_json_lines_have_the_promised_shape(icestream: Run, topic: str) -> None:
    icestream("produce", topic, "--producer", "sensor-1", stdin=b"text\n\xff\n")
    text, binary = objects(icestream("consume", topic).stdout)
    assert list(text) == ["offset", "publish_time", "producer", "key", "attributes", "payload"]
    assert text.pop("publish_time").endswith("Z")
    assert text == {"offset": 0, "producer": "sensor-1", "key": None, "attributes": {}, "payload": "text"}
    assert binary["payload_base64"] == "/w=="
    assert "payload" not in binary


def test_a_file_of_many_chunks_keeps_its_order(icestream: Run, topic: str, tmp_path: Path) -> None:
    content = b"".join(b"line %d\n" % number for number in range(300_000))
    path = tmp_path / "lines.txt"
    path.write_bytes(content)
    sent = icestream("produce", topic, str(path))
    assert sent.stdout.startswith(f"300,000 messages to {topic}, offsets 0 to 299999 (".encode())
    assert icestream("consume", topic, "--format", "raw").stdout == content


def test_empty_input_is_no_messages(icestream: Run, topic: str) -> None:
    answer = json.loads(icestream("produce", topic, "--json").stdout)
    assert (answer["count"], answer["first_offset"], answer["last_offset"]) == (0, None, None)
    assert icestream("produce", topic).stdout.startswith(f"0 messages to {topic} (".encode())


def test_keys_come_from_a_field_of_each_line(icestream: Run, topic: str) -> None:
    lines = b'{"user": {"id": "u1"}}\n{"user": {"id": 7}}\n{"user": {"id": null}}\n{"other": 1}\n{"user": {"id": 8}}\n'
    result = icestream("produce", topic, "--format", "json", "--key", "user.id", stdin=lines)
    assert result.returncode == 1
    assert result.stdout.startswith(f"3 messages to {topic}, offsets 0 to 2 (".encode())
    assert b"line 4: it has no field user.id" in result.stderr
    found = objects(icestream("consume", topic).stdout)
    assert [message["key"] for message in found] == ["u1", "7", None]
    assert found[0]["payload"] == '{"user": {"id": "u1"}}'


def test_a_line_that_looks_like_a_message_is_a_payload(icestream: Run, topic: str) -> None:
    line = b'{"payload": "x", "key": "k", "attributes": {}}'
    icestream("produce", topic, "--format", "json", stdin=line)
    (message,) = objects(icestream("consume", topic).stdout)
    assert (message["payload"].encode(), message["key"]) == (line, None)


def test_a_bad_line_is_named_and_all_before_it_is_stored(icestream: Run, topic: str) -> None:
    lines = b"".join(b'{"n": %d}\n' % number for number in range(1000)) + b"{oops}\n" + b'{"n": 0}\n' * 500
    result = icestream("produce", topic, "--format", "json", "--json", stdin=lines)
    assert result.returncode == 1
    assert result.stderr.startswith(b"Error: line 1001: not JSON")
    assert len(result.stderr.splitlines()) == 1
    assert json.loads(result.stdout)["count"] == 1000
    stored = objects(icestream("consume", topic).stdout)
    assert [json.loads(message["payload"])["n"] for message in stored] == list(range(1000))


def test_a_line_that_is_too_large_is_named(icestream: Run, topic: str) -> None:
    result = icestream("produce", topic, "--json", stdin=b"a\nb\n" + b"x" * (17 * 1024 * 1024) + b"\nc\n")
    assert result.returncode == 1
    assert result.stderr.startswith(b"Error: line 3: ")
    assert json.loads(result.stdout)["count"] == 2


class TestFrom:
    @pytest.fixture
    def two_batches(self, publish: Publish, topic: str) -> str:
        """Offsets 0 to 4, and in a second batch 5 to 9."""
        for _ in range(2):
            publish(topic, b"m\n" * 5)
        return topic

    def offsets(self, result: "subprocess.CompletedProcess[bytes]") -> list[int]:
        assert result.returncode == 0, result.stderr
        return [message["offset"] for message in objects(result.stdout)]

    def test_names_and_offsets(self, icestream: Run, two_batches: str) -> None:
        assert self.offsets(icestream("consume", two_batches, "--from", "earliest", "--max", "2")) == [0, 1]
        assert self.offsets(icestream("consume", two_batches, "--from", "latest")) == []
        assert self.offsets(icestream("consume", two_batches, "--from", "8")) == [8, 9]

    def test_a_time(self, icestream: Run, two_batches: str) -> None:
        (message,) = objects(icestream("consume", two_batches, "--from", "5", "--max", "1").stdout)
        moment = message["publish_time"]
        assert self.offsets(icestream("consume", two_batches, "--from", moment)) == [5, 6, 7, 8, 9]
        assert self.offsets(icestream("consume", two_batches, "--from", moment.removesuffix("Z"))) == [5, 6, 7, 8, 9]
        assert self.offsets(icestream("consume", two_batches, "--from", "1999-01-01"))[0] == 0

    def test_an_offset_beyond_the_end_is_an_error(self, icestream: Run, two_batches: str) -> None:
        result = icestream("consume", two_batches, "--from", "11")
        assert (result.returncode, result.stdout) == (1, b"")
        assert b"offset 11" in result.stderr


class TestFollowing:
    def test_new_messages_come_at_once(self, publish: Publish, environ: dict[str, str], topic: str) -> None:
        publish(topic, b"before\n")
        with following(environ, topic, "--format", "raw", "--max", "3") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"before\n"
            publish(topic, b"after\nlast\n")
            assert process.stdout.read() == b"after\nlast\n"
            assert process.wait() == 0

    def test_it_ends_when_nothing_came_in_time(self, icestream: Run, publish: Publish, topic: str) -> None:
        publish(topic, b"only\n")
        result = icestream("consume", topic, "--follow", "--format", "raw", "--timeout", "0.2")
        assert (result.returncode, result.stdout, result.stderr) == (0, b"only\n", b"")

    def test_ctrl_c_ends_it_quietly(self, publish: Publish, environ: dict[str, str], topic: str) -> None:
        publish(topic, b"only\n")
        with following(environ, topic) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
            assert process.stderr.read() == b""

    @pytest.mark.parametrize("count", [1, 100_000], ids=["idle", "busy"])
    def test_a_reader_that_goes_away_ends_it_quietly(
        self, publish: Publish, environ: dict[str, str], topic: str, count: int
    ) -> None:
        publish(topic, b"message\n" * count)
        with following(environ, topic) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.wait() == 0
            assert process.stderr.read() == b""


def test_raw_messages_may_have_another_delimiter(icestream: Run, publish: Publish, topic: str) -> None:
    publish(topic, b"a\nb\n")
    assert icestream("consume", topic, "--format", "raw", "--delimiter", "\\0").stdout == b"a\0b\0"
    assert icestream("consume", topic, "--format", "raw", "--delimiter", "").stdout == b"ab"


def test_a_topic_with_columns_takes_and_gives_json_rows(icestream: Run, topic: str, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("ms")), ("name", pa.string())])
    pq.write_table(schema.empty_table(), tmp_path / "columns.parquet")
    assert icestream("topic", "create", topic, "--schema", "columns.parquet").returncode == 0
    rows = b'{"id": 1, "at": "2026-01-31T12:00:00", "name": "x"}\n{"id": 2}\n{"name": "no id"}\n'
    result = icestream("produce", topic, "--format", "json", stdin=rows)
    assert result.returncode == 1
    assert b"line 3: " in result.stderr
    found = objects(icestream("consume", topic).stdout)
    assert [(row["_offset"], row["id"], row["at"], row["name"]) for row in found] == [
        (0, 1, "2026-01-31T12:00:00.000", "x"),
        (1, 2, None, None),
    ]
    assert b"use --format json" in icestream("produce", topic, stdin=b"x\n").stderr
    assert b"use --format json" in icestream("consume", topic, "--format", "raw").stderr


def test_ctrl_c_ends_publishing_after_what_was_read_is_confirmed(
    icestream: Run, environ: dict[str, str], topic: str
) -> None:
    icestream("topic", "create", topic)
    process = subprocess.Popen(
        [sys.executable, "-m", "icestream.cli", "produce", topic, "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        assert icestream("consume", topic, "--follow", "--max", "2", "--format", "raw").stdout == b"one\ntwo\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert json.loads(process.stdout.read())["count"] == 2
        assert process.stderr.read() == b"Interrupted.\n"
