"""`icestream demo`: publishes, reads, crashes and verifies on this machine."""

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from icestream.broker_process import BrokerProcess
from icestream.cli.demo_scenario import PAYLOAD_BYTES, DemoFigures, DemoScenario, ProgressReport, quantile
from icestream.cli.options import json_option
from icestream.cli.output import console, count_text, duration_text, print_json, size_text, table
from icestream.config import Settings

_STEPS = {
    "publish": "publish, with durable acknowledgements",
    "live": "consume live",
    "replay": "replay from offset 0",
    "table": "commit to Iceberg with Spark, and read the table",
}
_FLUSH_INTERVAL_MS = 500
_TERMINATED = 143


@click.command(name="demo", epilog="Example: icestream demo --messages 50000 --keep")
@click.option("--messages", type=click.IntRange(min=10), default=200_000, show_default=True, help="Number of messages.")
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="Write the data here, and keep it.")
@click.option("--keep", is_flag=True, help="Keep the data. Without --data it is removed otherwise.")
@json_option
def command(messages: int, data: Path | None, keep: bool, as_json: bool) -> None:
    """Show publishing, reading, a crash and the Iceberg table on this machine, and verify all counts.

    Starts a broker with its Spark pipeline. Publishes messages while a consumer follows, and kills the broker with
    `kill -9` in between. Replays all messages, waits until they are in the Iceberg table, and reads the table. Compares
    counts, order and checksums. Exits with 0 only if all of them match.
    """
    signal.signal(signal.SIGTERM, _leave)
    out = console()
    with _directory(data, keep=keep) as directory, _broker(directory) as broker:
        if not as_json:
            out.print("The broker is running. Spark is starting …")
        with _progress(out, messages, hidden=as_json) as progress:
            figures = DemoScenario(broker, Settings(data_dir=directory), messages, progress).run()
        stored = sum(path.stat().st_size for path in (directory / "wal").rglob("*.log"))
        kept = directory if keep or data is not None else None
        if as_json:
            print_json(_to_dict(figures, stored, kept))
        else:
            _show(out, figures, stored, kept)
    if not figures.ok:
        raise click.exceptions.Exit(1)


def _broker(directory: Path) -> BrokerProcess:
    flush = {"ICESTREAM_WRITER__FLUSH_INTERVAL_MS": str(_FLUSH_INTERVAL_MS)}
    return BrokerProcess(directory, pipeline=True, environ=flush)


def _leave(_signal: int, _frame: object) -> NoReturn:
    """Exit normally, so that the broker is stopped too."""
    sys.exit(_TERMINATED)


@contextlib.contextmanager
def _directory(data: Path | None, *, keep: bool) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    directory = Path(tempfile.mkdtemp(prefix="icestream-demo-"))
    try:
        yield directory
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _progress(out: Console, messages: int, *, hidden: bool) -> Iterator[ProgressReport]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, disable=hidden) as bars:
        tasks = {step: bars.add_task(text, total=messages) for step, text in _STEPS.items()}
        yield lambda step, done: bars.update(tasks[step], completed=done)


def _show(out: Console, figures: DemoFigures, stored: int, kept: Path | None) -> None:
    shown = table("figure", "", numbers=("",), title="Figures")
    for name, value in _figure_rows(figures, stored, kept):
        shown.add_row(name, value)
    out.print(shown)
    checks = table("check", "expected", "found", "", numbers=("expected", "found"), title="Checks")
    for check in figures.checks:
        verdict = Text("ok", style="green") if check.ok else Text("WRONG", style="red")
        checks.add_row(check.what, _text(check.expected), _text(check.found), verdict)
    out.print(checks)
    out.print("All checks passed." if figures.ok else "Some checks FAILED.")


def _figure_rows(figures: DemoFigures, stored: int, kept: Path | None) -> Iterator[tuple[str, str]]:
    yield "messages", f"{count_text(figures.messages)} of {PAYLOAD_BYTES} bytes"
    yield "one at a time: acknowledged, p50", duration_text(quantile(figures.ack_s, 0.5))
    yield "one at a time: acknowledged, p99", duration_text(quantile(figures.ack_s, 0.99))
    yield "one at a time: received by the consumer, p50", duration_text(quantile(figures.live_s, 0.5))
    yield "send_batch, acknowledged", f"{figures.batch_rate:,.0f} messages/s"
    yield "send, acknowledged", f"{figures.send_rate:,.0f} messages/s"
    yield "not yet acknowledged when the broker was killed", f"{count_text(figures.unacknowledged_at_kill)} messages"
    yield "restart of the broker", duration_text(figures.restart_s)
    yield "replay", f"{figures.replay_rate:,.0f} messages/s"
    yield "last acknowledgement to last commit", duration_text(figures.table_s)
    yield "reading the table", f"{figures.table_rate:,.0f} messages/s from {figures.table_files} files"
    yield "log on disk", size_text(stored)
    yield "topic", figures.topic
    yield "data", "removed" if kept is None else str(kept)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return count_text(value) if isinstance(value, int) else str(value)


def _to_dict(figures: DemoFigures, stored: int, kept: Path | None) -> dict[str, Any]:
    return {
        "ok": figures.ok,
        "topic": figures.topic,
        "messages": figures.messages,
        "ack_p50_ms": round(quantile(figures.ack_s, 0.5) * 1000, 3),
        "ack_p99_ms": round(quantile(figures.ack_s, 0.99) * 1000, 3),
        "live_p50_ms": round(quantile(figures.live_s, 0.5) * 1000, 3),
        "send_batch_per_s": round(figures.batch_rate),
        "send_per_s": round(figures.send_rate),
        "replay_per_s": round(figures.replay_rate),
        "unacknowledged_at_kill": figures.unacknowledged_at_kill,
        "restart_s": round(figures.restart_s, 3),
        "table_s": round(figures.table_s, 3),
        "table_per_s": round(figures.table_rate),
        "table_files": figures.table_files,
        "snapshot_id": figures.snapshot_id,
        "bytes_stored": stored,
        "data": None if kept is None else str(kept),
        "checks": [
            {"check": check.what, "expected": check.expected, "found": check.found, "ok": check.ok}
            for check in figures.checks
        ],
    }
