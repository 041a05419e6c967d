"""`icestream wal`: inspect and repair the files of a log."""

import contextlib
from pathlib import Path
from typing import Any

import click

from icestream.cli.options import json_option
from icestream.cli.output import (
    NOTHING,
    console,
    count_text,
    offsets_text,
    plural,
    print_json,
    rfc3339,
    size_text,
    table,
)
from icestream.model.errors import InvalidRequestError
from icestream.storage import LOCK_FILE, exclusive_directory
from icestream.wal import (
    LocalFiles,
    LogProblem,
    LogReport,
    RepairReport,
    inspect_directory,
    repair_directory,
    segment_offsets,
    segment_path,
    segment_ranges,
)

_FRAME_LIMIT = 1000
_LEVELS_TO_LOCK = 2

_path_argument = click.argument("path", type=click.Path(path_type=Path))


@click.group(name="wal", epilog="Example: icestream wal inspect icestream-data/wal/default/events")
def command() -> None:
    """Inspect and repair the files of a log.

    PATH is a topic's directory: `<data>/wal/<namespace>/<name>`.
    """


@command.command(epilog="Example: icestream wal inspect icestream-data/wal/default/events --frames --limit 20")
@_path_argument
@click.option("--frames", is_flag=True, help="List the frames too.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=_FRAME_LIMIT,
    show_default=True,
    metavar="N",
    help="List at most the first N frames.",
)
@json_option
def inspect(path: Path, frames: bool, limit: int, as_json: bool) -> None:
    """Read the whole log and check every byte. Changes nothing.

    Exits with 1 when anything is damaged or missing. A torn tail is no damage: the broker cuts it off when it opens the
    log.
    """
    files = LocalFiles()
    report = inspect_directory(files, _directory(path))
    listed = _frames(files, path, limit) if frames else []
    if as_json:
        print_json(report.to_dict() | ({"frames": listed} if frames else {}))
    else:
        _show(report, listed)
    if report.problems:
        raise click.exceptions.Exit(1)


@command.command(epilog="Example: icestream wal repair icestream-data/wal/default/events --yes")
@_path_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def repair(path: Path, yes: bool, as_json: bool) -> None:
    """Repair a damaged log. Stop the broker first.

    Rebuilds derived files. Messages that cannot be read are lost: their offsets stay empty, all others keep theirs.
    Copies of the damaged files stay in PATH/torn.
    """
    files = LocalFiles()
    with _exclusive(_directory(path)):
        problems = inspect_directory(files, path).problems
        if problems and not yes:
            for problem in problems:
                click.echo(_problem_line(problem), err=True)
            click.confirm("Repair this log? Messages that cannot be read are lost", abort=True, err=True)
        report = repair_directory(files, path) if problems else RepairReport(str(path))
    if as_json:
        print_json(report.to_dict())
        return
    for action in report.actions:
        click.echo(action)
    for first, end in report.lost:
        click.echo(f"lost: {plural(end - first, 'message')}, offsets {first} to {end - 1}")
    click.echo("repaired" if problems else "nothing to repair")


def _directory(path: Path) -> Path:
    if not path.is_dir():
        raise InvalidRequestError("this is not a directory", operation="wal", place=str(path))
    return path


def _exclusive(path: Path) -> contextlib.AbstractContextManager[None]:
    """Take the broker's lock on all logs, if the lock file exists; a copied directory has none."""
    parents = path.resolve().parents
    owner = parents[_LEVELS_TO_LOCK - 1] if len(parents) >= _LEVELS_TO_LOCK else path
    return exclusive_directory(owner) if (owner / LOCK_FILE).exists() else contextlib.nullcontext()


def _frames(files: LocalFiles, path: Path, limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for offset in segment_offsets(files, path):
        segment = segment_path(path, offset)
        with contextlib.closing(segment_ranges(files, path, offset)) as ranges:
            for entry in ranges:
                if len(found) == limit:
                    return found
                if entry.complete is not None:
                    frame = entry.complete.frame
                    found.append(
                        {
                            "file": segment.name,
                            "position": entry.position,
                            "bytes": entry.end - entry.position,
                            "base_offset": frame.base_offset,
                            "messages": frame.message_count,
                            "publish_time_us": frame.publish_time_us,
                            "epoch": frame.epoch,
                            "producer": frame.producer,
                            "sequence": frame.sequence,
                        }
                    )
    return found


def _show(report: LogReport, frames: list[dict[str, Any]]) -> None:
    out = console()
    out.print(f"{report.topic or 'unknown topic'}, stream {report.stream_id or 'unknown'}, epoch {report.epoch}")
    numbers = ("first", "next", "frames", "size")
    segments = table("segment", *numbers, "state", "index", "first published", "last published", numbers=numbers)
    for segment in report.segments:
        segments.add_row(
            segment.file,
            count_text(segment.base_offset),
            count_text(segment.end_offset),
            count_text(segment.frames),
            size_text(segment.nbytes),
            "sealed" if segment.sealed else "open",
            segment.index,
            *(
                NOTHING if not time_us else rfc3339(time_us)
                for time_us in (segment.first_time_us, segment.last_time_us)
            ),
        )
    out.print(segments)
    if frames:
        out.print(_frame_table(frames))
    if report.torn_tail_bytes:
        out.print(f"torn tail: {size_text(report.torn_tail_bytes)} that may not be durable")
    if report.torn_copies:
        out.print(f"copies in torn/: {', '.join(report.torn_copies)}")
    for problem in report.problems:
        out.print(_problem_line(problem), style="red")
    if not report.problems:
        messages = (report.end_offset or 0) - (report.start_offset or 0)
        span = offsets_text(report.start_offset or 0, report.end_offset or 0)
        out.print(f"sound: {plural(messages, 'message')}, {span}")


def _frame_table(frames: list[dict[str, Any]]) -> Any:
    numbers = ("position", "offset", "messages", "size", "sequence")
    made = table("segment", *numbers, "producer", "published", numbers=numbers)
    for frame in frames:
        made.add_row(
            frame["file"],
            str(frame["position"]),
            str(frame["base_offset"]),
            count_text(frame["messages"]),
            size_text(frame["bytes"]),
            str(frame["sequence"]),
            frame["producer"],
            rfc3339(frame["publish_time_us"]),
        )
    return made


def _problem_line(problem: LogProblem) -> str:
    text = f"problem: {problem.file}, byte {problem.position}: {problem.reason}"
    if problem.first_offset is None:
        return text
    if problem.end_offset is None:
        return f"{text}; offsets from {problem.first_offset} on"
    return f"{text}; offsets {problem.first_offset} to {problem.end_offset - 1}"
