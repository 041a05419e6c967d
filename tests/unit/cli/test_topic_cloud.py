"""What `topic recover` and `cloud list` say, in sentences."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from icestream.cli.cloud import head_line
from icestream.cli.main import cli
from icestream.cli.topic import loss_line, source_lines, unreadable_line

REPORT: dict[str, Any] = {
    "topic": "a/b",
    "stream_id": "s",
    "epoch": 2,
    "start_offset": 100,
    "next_offset": 100,
    "cloud_first_offset": 20,
    "cloud_end": 100,
    "committed_offset": 80,
    "lost_first": None,
    "lost_end": None,
    "objects": 1,
    "bytes": 2048,
    "unreadable": [],
    "sources": [],
}


def test_what_came_from_where_is_said() -> None:
    assert source_lines(REPORT) == [
        "the cloud has offsets 20 to 99, next 100 in 1 object of 2.00 KiB",
        "the table has offsets 0 to 79, next 80",
    ]
    empty = REPORT | {"cloud_first_offset": None, "committed_offset": None, "objects": 0}
    assert source_lines(empty) == ["the cloud has no messages of this topic", "there is no table"]


def test_a_loss_is_said_with_its_offsets_and_nothing_else() -> None:
    assert loss_line(REPORT) is None
    assert loss_line(REPORT | {"lost_first": 100, "lost_end": 100}) is None
    line = loss_line(REPORT | {"lost_first": 100, "lost_end": 164})
    assert line is not None
    assert "offsets 100 to 163, which they may have had, stay empty" in line


def test_what_cannot_be_read_any_more_is_said_with_its_offsets() -> None:
    assert unreadable_line(REPORT) is None
    line = unreadable_line(REPORT | {"unreadable": [[80, 84], [90, 91]]})
    assert line == (
        "the offsets 80 to 83, 90 to 90 cannot be read: their objects are gone or damaged, and no table has them"
    )


def test_how_far_the_cloud_is_in_one_line() -> None:
    page: dict[str, Any] = {"topic": "a/b", "store": "fs:///objects", "head": None}
    assert head_line(page) == "a/b: nothing was uploaded to fs:///objects yet"
    head = {"stream_id": "s", "first_offset": 5, "uploaded_end": 9, "object_count": 2, "object_bytes": 10}
    line = head_line(page | {"head": head})
    assert line == "a/b: offsets 5 to 8, next 9; 2 objects of 10 B in fs:///objects/a/b/s"


@pytest.mark.parametrize(
    ("backend", "sentence"),
    [("memory", "only the broker can read an object store in memory"), (None, "the settings name no object store")],
)
def test_why_there_is_no_store_to_look_into(tmp_path: Path, backend: str | None, sentence: str) -> None:
    environ = {"ICESTREAM_CLOUD__BACKEND": backend}
    done = CliRunner().invoke(cli, ["cloud", "inspect", "a/b", "0", f"--data={tmp_path}"], env=environ)
    assert (done.exit_code, done.stdout) == (1, "")
    assert sentence in done.stderr
