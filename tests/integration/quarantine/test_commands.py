"""`icestream quarantine`, and what `verify`, `stats` and `topic describe` say of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.integration.pipeline.conftest import Pipelines
from tests.integration.quarantine.conftest import CrashingAt, drain, poison

from icestream.app import Broker
from icestream.cli.main import cli
from icestream.model.messages import message_batch
from icestream.model.quarantine import open_frame_file


@pytest.fixture
def run(running: Broker) -> Any:
    def run(*arguments: str, code: int = 0) -> Result:
        found = CliRunner().invoke(cli, list(arguments), env={"ICESTREAM_BROKER": running.doors["flight"]})
        assert found.exit_code == code, found.output
        return found

    return run


@pytest.fixture
def data(running: Broker) -> list[str]:
    return ["--data", str(running.settings.data_dir)]


def test_a_frame_that_cannot_be_opened_is_listed_shown_and_exported(
    site: Pipelines, running: Broker, run: Any, data: list[str], tmp_path: Path
) -> None:
    site.publish("events", [b"a"])
    poison(running, site.topic("events"))
    drain(site)
    (listed,) = json.loads(run("quarantine", "list", *data, "--json").output)["quarantined"]
    assert (listed["topic"], listed["first_offset"], listed["end_offset"]) == ("aside/events", 1, 4)
    assert json.loads(run("quarantine", "list", "aside/events", *data, "--json").output)["quarantined"] == [listed]
    assert "1 frame in quarantine" in run("quarantine", "list", *data).output

    text = run("quarantine", "show", "aside/events", "2", *data).output
    assert "no Arrow at all" in text
    assert "arrow_ipc" in text
    assert "cannot be decoded" in text.splitlines()[-1]
    shown = json.loads(run("quarantine", "show", "aside/events", "1", *data, "--json").output)
    assert shown["header"]["message_count"] == 3
    assert bytes.fromhex(shown["body_start"]) == b"no Arrow at all"

    whole, body = tmp_path / "frame", tmp_path / "body"
    run("quarantine", "export", "aside/events", "3", str(whole), *data)
    run("quarantine", "export", "aside/events", "3", str(body), "--body", *data)
    assert body.read_bytes() == b"no Arrow at all"
    stream_id = site.client.describe_topic("aside/events").stream_id
    assert open_frame_file(whole.read_bytes(), stream_id, place="").base_offset == 1
    run("quarantine", "export", "aside/events", "3", str(body), *data, code=1)
    assert body.read_bytes() == b"no Arrow at all", "what is there is not written over"

    refused = run("quarantine", "retry", "aside/events", "1", *data, code=1)
    assert "cannot be decoded" in refused.output
    assert site.client.describe_topic("aside/events").durable_end == 4


def test_what_is_not_there_is_told_in_one_sentence(site: Pipelines, run: Any, data: list[str], tmp_path: Path) -> None:
    site.publish("sound", [b"a"])
    drain(site)
    assert "0 frames in quarantine" in run("quarantine", "list", *data).output
    assert "there is no catalog" in run("quarantine", "list", "--data", str(tmp_path / "nowhere"), code=1).output
    assert not (tmp_path / "nowhere").exists()
    assert "is not in quarantine" in run("quarantine", "show", "aside/sound", "0", *data, code=1).output
    assert "no table" in run("quarantine", "list", "aside/other", *data, code=1).output
    run("quarantine", "show", "aside/sound", "minus", *data, code=2)


def test_what_can_be_opened_is_published_again_and_only_once(site: Pipelines, run: Any, data: list[str]) -> None:
    site.publish("again", [b"a"])
    site.publish("again", [b"b", b"c"])
    site.publish("again", [b"d"])
    drain(site, CrashingAt(2))
    told = json.loads(run("quarantine", "retry", "aside/again", "1", *data, "--json").output)
    assert (told["first_offset"], told["end_offset"]) == (4, 6)
    refused = run("quarantine", "retry", "aside/again", "2", *data, code=1)
    assert "published again already" in refused.output
    drain(site)
    assert site.rows("again").column("offset").to_pylist() == [0, 3, 4, 5]
    assert site.rows("again").column("payload").to_pylist() == [b"a", b"d", b"b", b"c"]
    assert "offsets 4 to 5" in run("quarantine", "show", "aside/again", "1", *data).output


def test_a_retry_that_was_published_and_not_noted_is_not_published_twice(
    site: Pipelines, run: Any, data: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.publish("cut", [b"a"])
    drain(site, CrashingAt(0))

    def cut_short(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("icestream.cli.quarantine.mark_retried", cut_short)
        run("quarantine", "retry", "aside/cut", "0", *data, code=130)
    told = run("quarantine", "retry", "aside/cut", "0", *data).output
    assert "messages with unknown offsets" in told
    assert site.client.describe_topic("aside/cut").durable_end == 2


def test_a_retry_that_was_cut_short_is_gone_on_with(site: Pipelines, run: Any, data: list[str]) -> None:
    payloads = [b"%d" % number for number in range(10)]
    site.publish("half", payloads)
    drain(site, CrashingAt(3))
    stream_id = site.client.describe_topic("aside/half").stream_id
    with site.client.producer("aside/half", name=f"quarantine-0-{stream_id}") as producer:
        producer.send_batch(message_batch(payloads[:4])).result()
    told = json.loads(run("quarantine", "retry", "aside/half", "0", *data, "--json").output)
    assert (told["first_offset"], told["end_offset"], told["before"]) == (14, 20, 4)
    assert site.client.read("aside/half", start=10).column("payload").to_pylist() == payloads
    shown = run("quarantine", "show", "aside/half", "0", *data).output
    assert "offsets 14 to 19, next 20, and earlier 4 messages" in shown


def test_verify_lists_it_and_ends_with_0(site: Pipelines, running: Broker, run: Any, data: list[str]) -> None:
    site.publish("audited", [b"a"])
    poison(running, site.topic("audited"))
    drain(site)
    site.client.wait_committed("aside/audited", 3, timeout=60)
    found = run("verify", "aside/audited", *data).output
    assert "offsets 1 to 3: in quarantine" in found
    assert "sound" in found
    (topic,) = json.loads(run("verify", "aside/audited", *data, "--json").output.splitlines()[-1])["topics"]
    assert (topic["sound"], len(topic["quarantined"]), topic["lost"]) == (True, 1, 0)
    assert "1 frame of them in quarantine" in run("topic", "describe", "aside/audited").output
    assert "1 frame in quarantine" in run("stats", "aside/audited").output
