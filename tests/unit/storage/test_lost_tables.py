"""A catalog that was lost, or came back as an older copy: nobody gets fewer messages without a word."""

import json
import shutil
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from structlog.testing import capture_logs
from tests.reading import PATIENCE_SECONDS, TOPIC, Stage, rest_of

from icestream.cli.main import cli
from icestream.metadata import keys
from icestream.model.errors import TableLostError, error_from_dict
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.pipeline.one_pass import open_table
from icestream.pipeline.state import RetryPause, TopicState
from icestream.query.topics import BrokerTopics
from icestream.storage import open_store
from icestream.storage.repeated_warnings import MAX_PAUSE_SECONDS, RepeatedWarnings

NAME = TopicName.parse(TOPIC)
MESSAGES = 40


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A topic whose first messages are in the table alone."""
    opened = Stage(tmp_path)
    for number in range(MESSAGES):
        opened.publish([b"%d %s" % (number, b"x" * 900)])
    opened.commit(MESSAGES - 10)
    assert opened.prune() > 0
    yield opened
    opened.close()


def lose_catalog(stage: Stage) -> None:
    """Stop, lose the catalog's file, start again."""
    path = stage.settings.data_dir
    stage.close()
    (path / "catalog.db").unlink()
    vars(stage).update(vars(Stage(path)))


def run(stage: Stage, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["table", *arguments, "--data", str(stage.settings.data_dir), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])  # the storage's log events come before
    return found


def wait_for_table_error(stage: Stage, *, said: bool) -> str | None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (stage.storage.stats(TOPIC)[0].table_error is not None) != said:
        assert time.monotonic() < deadline
        stage.storage.table_watch.hint(NAME)
        time.sleep(0.01)
    return stage.storage.stats(TOPIC)[0].table_error


@pytest.mark.parametrize("start", ["earliest", "0", "2020-01-01T00:00:00Z", "tag:any", "snapshot:1"])
def test_no_start_position_becomes_a_short_read(stage: Stage, start: str) -> None:
    lose_catalog(stage)
    with pytest.raises(TableLostError, match=f"icestream table register {TOPIC}"):
        stage.reader(start)


def test_what_the_log_has_is_read_as_before(stage: Stage) -> None:
    lose_catalog(stage)
    start = stage.topic.log.start_offset
    assert [offset for offset, _ in rest_of(stage.reader(start))] == list(range(start, MESSAGES))


def test_a_reader_that_is_already_open_gets_the_error_too(stage: Stage) -> None:
    reader = stage.reader(0)
    stage.tables.catalog.drop_table(tuple(NAME))
    with pytest.raises(TableLostError):
        rest_of(reader)
    reader.close()


@pytest.mark.parametrize("fresh", [True, False])
def test_sql_is_refused(stage: Stage, fresh: bool) -> None:
    lose_catalog(stage)
    with pytest.raises(TableLostError):
        BrokerTopics(stage.storage).find(NAME, fresh=fresh)


def test_stats_and_log_say_it_until_the_table_is_back(stage: Stage) -> None:
    with capture_logs() as events:
        lose_catalog(stage)
        assert "icestream table register" in (wait_for_table_error(stage, said=True) or "")
        run(stage, "register", TOPIC)
        wait_for_table_error(stage, said=False)
    said = [event for event in events if event["event"] == "table_lost"]
    assert len(said) == 1
    assert (said[0]["topic"], said[0]["committed_offset"]) == (TOPIC, 0)
    assert said[0]["in_table_below"] == stage.topic.log.start_offset
    assert [event["event"] for event in events if event["event"] == "table_usable_again"]


def test_the_pipeline_makes_no_new_table(stage: Stage) -> None:
    lose_catalog(stage)
    (backlog,) = stage.storage.backlog.ask().topics
    assert backlog.in_table_below == stage.topic.log.start_offset
    state = TopicState(backlog, RetryPause(1.0, 1.0), since=0.0)
    with pytest.raises(TableLostError):
        open_table(stage.tables, state, state.sinks[0])
    assert stage.tables.find(NAME) is None
    run(stage, "register", TOPIC)
    assert open_table(stage.tables, state, state.sinks[0]).ledger.committed_offset == MESSAGES - 10


def test_a_registered_table_is_complete_again(stage: Stage) -> None:
    lose_catalog(stage)
    planned = run(stage, "register", "--all", "--dry-run")
    assert [table["registered"] for table in planned["tables"]] == [True]
    assert stage.tables.find(NAME) is None
    done = run(stage, "register", "--all")
    assert done["tables"] == planned["tables"]
    assert done["tables"][0]["committed_offset"] == MESSAGES - 10
    assert [offset for offset, _ in rest_of(stage.reader("earliest"))] == list(range(MESSAGES))
    assert [table["registered"] for table in run(stage, "register", "--all")["tables"]] == [False]
    stage.commit()


def test_an_empty_table_that_an_earlier_pipeline_made_is_replaced(stage: Stage) -> None:
    lose_catalog(stage)
    stage.table()
    with pytest.raises(TableLostError):
        stage.reader("earliest")
    assert run(stage, "register", TOPIC)["tables"][0]["present_offset"] == 0
    assert len(rest_of(stage.reader("earliest"))) == MESSAGES


def test_an_older_copy_of_the_catalog_is_no_short_read(stage: Stage, tmp_path: Path) -> None:
    catalog = tmp_path / "catalog.db"
    shutil.copy(catalog, tmp_path / "older.db")
    for number in range(20):
        stage.publish([b"later %d %s" % (number, b"x" * 900)])
    stage.commit()
    assert stage.prune() > MESSAGES - 10
    stage.close()
    shutil.copy(tmp_path / "older.db", catalog)
    vars(stage).update(vars(Stage(tmp_path)))
    with pytest.raises(TableLostError, match=f"ends at offset {MESSAGES - 10}"):
        stage.reader("earliest")
    assert run(stage, "register", TOPIC)["tables"][0]["present_offset"] == MESSAGES - 10
    assert len(rest_of(stage.reader("earliest"))) == MESSAGES + 20


def test_metadata_that_is_damaged_or_names_missing_files_is_passed_over(stage: Stage) -> None:
    table = stage.commit()
    lose_catalog(stage)
    newest = Path(table.iceberg.metadata_location.removeprefix("file://"))
    (newest.parent / "99999-damaged.metadata.json").write_text("{")
    fields = json.loads(newest.read_text())
    fields["properties"]["icestream.stream-id"] = "another"
    fields["last-updated-ms"] += 1000
    (newest.parent / "99998-other.metadata.json").write_text(json.dumps(fields))
    manifests = fields["snapshots"][-1]["manifest-list"].removeprefix("file://")
    shutil.move(manifests, f"{manifests}.away")
    (found,) = run(stage, "register", TOPIC, "--dry-run")["tables"]
    assert found["committed_offset"] == MESSAGES - 10
    assert len(found["passed_over"]) == 2
    shutil.move(f"{manifests}.away", manifests)
    (found,) = run(stage, "register", TOPIC)["tables"]
    assert (found["committed_offset"], found["metadata_location"]) == (MESSAGES, f"file://{newest}")


def test_a_dry_run_makes_no_catalog(stage: Stage) -> None:
    path = stage.settings.data_dir / "catalog.db"
    stage.close()
    path.unlink()
    run(stage, "register", TOPIC, "--dry-run")
    assert not path.exists()


def test_a_topic_without_files_is_an_error_exit(stage: Stage) -> None:
    stage.storage.topics.create("default/new")
    for topic, said in (("default/new", "no metadata file"), ("default/other", "no topic of this name")):
        done = CliRunner().invoke(cli, ["table", "register", topic, "--data", str(stage.settings.data_dir)])
        assert done.exit_code == 1
        assert said in done.output


def test_a_table_that_was_never_written_is_no_lost_table(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.publish([b"one"])
    assert stage.topic.in_table_below == 0
    assert len(rest_of(stage.reader("earliest"))) == 1
    stage.close()


def test_a_recovered_topic_notes_what_its_log_gives_up(tmp_path: Path) -> None:
    """Its log begins where the lost one ended, which says nothing of the table."""
    stage = Stage(tmp_path)
    record = replace(stage.topic.record, epoch=2)
    stage.close()
    with open_store(stage.settings) as metadata:
        metadata.put(keys.topic(NAME), record.to_bytes())
    stage = Stage(tmp_path)
    for number in range(MESSAGES):
        stage.publish([b"%d %s" % (number, b"x" * 900)])
    stage.commit()
    assert stage.topic.in_table_below == 0
    start = stage.prune()
    assert stage.topic.in_table_below == start > 0
    lose_catalog(stage)
    assert stage.topic.record.in_table_below == start
    with pytest.raises(TableLostError):
        stage.reader("earliest")
    stage.close()


def test_a_lasting_trouble_is_logged_ever_less_often() -> None:
    now = [0.0]
    warnings = RepeatedWarnings(lambda: now[0])
    logged = []
    for second in range(4 * 3600):
        now[0] = float(second)
        if warnings.is_due("a"):
            logged.append(second)
    assert logged[:4] == [0, 60, 180, 420]
    assert max(later - earlier for earlier, later in pairwise(logged)) == MAX_PAUSE_SECONDS
    warnings.end("a")
    assert warnings.is_due("a")


def test_a_table_that_was_set_back_is_one_warning_and_not_one_at_every_look(stage: Stage) -> None:
    """Beside another topic whose table is fine: its success does not make the warning new."""
    other = stage.storage.topics.create("default/other")
    stage.storage.publish(other, message_batch([b"x"]))
    first = stage.table().iceberg.metadata.snapshots[0].snapshot_id
    stage.commit()
    with capture_logs() as events:
        stage.table().iceberg.manage_snapshots().set_current_snapshot(first).commit()
        stage.publish([b"more"])
        assert "newest snapshot" in (wait_for_table_error(stage, said=True) or "")
        time.sleep(0.3)  # many looks at both tables
    assert [event["event"] for event in events].count("table_unusable") == 1


def test_the_error_crosses_the_wire() -> None:
    again = error_from_dict(TableLostError.of(TOPIC, 0, 5).to_dict())
    assert isinstance(again, TableLostError)
    assert not again.retryable
