"""`icestream demo`: its messages, its checks and its output. One whole run is in `tests/e2e/cli/test_demo.py`."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from icestream.cli import demo
from icestream.cli.demo_scenario import PAYLOAD_BYTES, Check, DemoFigures, Tally, free_topic, payload, quantile
from icestream.client import Client


def batch(offsets: list[int], payloads: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"offset": offsets, "payload": pa.array(payloads, pa.binary())})


def test_payloads_have_one_size_and_differ() -> None:
    payloads = [payload(index) for index in range(3000)]
    assert {len(message) for message in payloads} == {PAYLOAD_BYTES}
    assert len({message[13:] for message in payloads}) == 3000


def test_the_same_messages_have_the_same_tally_however_they_are_cut() -> None:
    messages = [payload(index) for index in range(10)]
    sent, received = Tally(), Tally()
    sent.add(messages)
    for first, end in ((0, 3), (3, 4), (4, 10)):
        received.add_batch(batch(list(range(first, end)), messages[first:end]))
    assert (received.count, received.checksum, received.in_order) == (10, sent.checksum, True)


def test_a_gap_a_duplicate_and_a_changed_byte_show() -> None:
    gap, duplicate, changed, right = Tally(), Tally(), Tally(), Tally()
    right.add([b"a", b"b"])
    gap.add_batch(batch([0, 2], [b"a", b"b"]))
    for _ in range(2):
        duplicate.add_batch(batch([0], [b"a"]))
    changed.add_batch(batch([0, 1], [b"a", b"B"]))
    assert (gap.in_order, duplicate.in_order) == (False, False)
    assert changed.checksum != right.checksum


def test_one_wrong_check_is_a_failure() -> None:
    figures = DemoFigures("t", 1, checks=[Check("count", 1, 1)])
    assert figures.ok
    figures.checks.append(Check("order", expected=True, found=False))
    assert not figures.ok


def test_quantiles_are_values_that_were_measured() -> None:
    assert (quantile([3.0, 1.0, 2.0], 0.5), quantile([1.0], 0.99), quantile([1.0, 2.0], 0.99)) == (2.0, 1.0, 2.0)


def test_a_second_demo_in_the_same_directory_takes_another_topic() -> None:
    topics = ["default/demo", "default/demo-2", "default/demonstration"]
    client = SimpleNamespace(
        list_topics=lambda prefix: [SimpleNamespace(topic=topic) for topic in topics if topic.startswith(prefix)],
        create_topic=lambda name: SimpleNamespace(topic=name),
    )
    assert free_topic(cast("Client", client)) == "default/demo-3"
    topics.clear()
    assert free_topic(cast("Client", client)) == "default/demo"


def run(monkeypatch: pytest.MonkeyPatch, temporary: Path, *arguments: str, found: int = 10) -> Result:
    """Run the command; the scenario leaves a file and reports `found` of 10 messages."""

    class Scenario:
        def __init__(self, _broker: object, settings: Any, messages: int, _progress: object) -> None:
            (settings.data_dir / "wal").mkdir(parents=True, exist_ok=True)
            (settings.data_dir / "wal" / "0.log").write_bytes(b"x" * 100)
            self._messages = messages

        def run(self) -> DemoFigures:
            checks = [Check("count", self._messages, found)]
            return DemoFigures("default/demo", self._messages, ack_s=[0.001], live_s=[0.002], checks=checks)

    monkeypatch.setattr(demo, "DemoScenario", Scenario)
    monkeypatch.setattr(demo, "_broker", lambda _directory: contextlib.nullcontext())
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return CliRunner().invoke(demo.command, ["--messages", "10", *arguments])


def test_temporary_data_is_removed_unless_it_is_to_be_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path).exit_code == 0
    assert not list(tmp_path.iterdir())
    kept = json.loads(run(monkeypatch, tmp_path, "--keep", "--json").stdout)["data"]
    assert [str(path) for path in tmp_path.iterdir()] == [kept]
    given = tmp_path / "given"
    assert json.loads(run(monkeypatch, tmp_path, "--data", str(given), "--json").stdout)["data"] == str(given)
    assert (given / "wal" / "0.log").exists()


def test_json_has_the_figures_and_the_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = json.loads(run(monkeypatch, tmp_path, "--json").stdout)
    assert report["ok"] is True
    assert (report["topic"], report["messages"], report["bytes_stored"]) == ("default/demo", 10, 100)
    assert (report["ack_p50_ms"], report["live_p50_ms"], report["data"]) == (1.0, 2.0, None)
    assert report["checks"] == [{"check": "count", "expected": 10, "found": 10, "ok": True}]


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_count_that_does_not_match_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    result = run(monkeypatch, tmp_path, *arguments, found=9)
    assert result.exit_code == 1
    assert ('"ok": false' if arguments else "Some checks FAILED.") in result.stdout
