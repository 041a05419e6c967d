"""The mutation check: take one safeguard away at a time, and see that the tests named for it fail.

    python dev/mutants.py                     all of them
    python dev/mutants.py --list              their names
    python dev/mutants.py commit-sync ...     some of them

Works on a copy of the tree. First the named tests must pass on the sound copy; then, for each mutant, every test named
for it must fail. Exit code 1 if one does not, or if the text that a mutant replaces is not there any more.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "dev", "docs", "pyproject.toml", "README.md")
TIMEOUT_SECONDS = 600

SAFEGUARDS = "tests/unit/wal/test_safeguards.py"
POWER_CUTS = "tests/fault/wal/test_power_cuts.py"
ANY_POWER_CUT = f"{POWER_CUTS}::test_no_power_cut_loses_what_was_acknowledged_or_stops_the_log"
EVERY_STATE = f"{POWER_CUTS}::test_every_state_after_a_power_cut_of_a_small_log_recovers"
BIT_FLIPS = "tests/fault/wal/test_bit_flips.py"
WRITE_FAULTS = "tests/fault/wal/test_write_faults.py"
COMMITS = "tests/conformance/catalogs/test_commits.py"
RACES = "tests/fault/pipeline/test_races.py"
ZOMBIE = f"{RACES}::test_a_pipeline_that_wakes_between_its_write_and_its_commit_commits_nothing_again"
MADE_AGAIN = "tests/fault/pipeline/test_topics_made_again.py"
LOST_ANSWERS = "tests/fault/metadata/test_lost_answers.py"
ETCD_WATCHES = "tests/fault/metadata/test_watches.py"
HTTP_TESTS = "tests/integration/http"
UPLOADER = "tests/unit/cloud/test_uploader.py"
SUBSCRIPTIONS = "tests/unit/subscription"
NO_TRACE = "tests/fault/pipeline/test_no_trace.py::test_a_pass_that_fails_leaves_no_trace_in_the_table"

OWN_COMMIT = """\
    response = send(table, tuple(requirements), tuple(updates))
    return Committed(response, tuple(now), tuple(expired))
"""
LIBRARY_COMMIT = """\
    with table.transaction() as transaction:
        with transaction.update_snapshot(snapshot_properties=ledger.to_properties()).fast_append() as append:
            for file in files:
                append.append_data_file(file.data_file)
        transaction.set_properties(ledger.to_properties())
    table.refresh()
    response = CommitTableResponse.model_validate(
        {"metadata": table.metadata, "metadata-location": table.metadata_location}
    )
    return Committed(response, tuple(table.current_snapshot().manifests(table.io)), ())
"""


@dataclass(frozen=True)
class Mutant:
    name: str
    removes: str
    file: str
    edits: tuple[tuple[str, str], ...]
    """Exact texts, each found once, and what stands there instead."""
    tests: tuple[str, ...]
    """Each of these must fail; of one with parameters, at least one case."""


MUTANTS = (
    Mutant(
        "commit-sync",
        "the datasync before an acknowledgement",
        "src/icestream/wal/segment.py",
        (("            write_durably(self.active.file, buffers", "            write_all(self.active.file, buffers"),),
        (
            f"{SAFEGUARDS}::test_an_acknowledged_batch_survives_every_power_cut",
            f"{ANY_POWER_CUT}[group commits and rotation]",
        ),
    ),
    Mutant(
        "seal-sync",
        "the datasync of a segment's end before its successor is made",
        "src/icestream/wal/segment.py",
        (
            (
                "        active.file.truncate(active.position + FOOTER_BYTES)\n        active.file.datasync()\n",
                "        active.file.truncate(active.position + FOOTER_BYTES)\n",
            ),
        ),
        (f"{SAFEGUARDS}::test_so_do_the_segments_before_the_active_one_and_the_names_of_all",),
    ),
    Mutant(
        "segment-directory-sync",
        "the sync of the directory when a segment is made",
        "src/icestream/wal/segments.py",
        (("        context.files.sync_directory(self._directory)\n        self._use(", "        self._use("),),
        (f"{POWER_CUTS}::test_every_state_after_a_power_cut_of_a_small_log_recovers",),
    ),
    Mutant(
        "record-directory-sync",
        "the sync of the directory when a record is replaced",
        "src/icestream/wal/records.py",
        (
            (
                "    files.replace(temporary, path)\n    files.sync_directory(path.parent)\n",
                "    files.replace(temporary, path)\n",
            ),
        ),
        (EVERY_STATE, f"{ANY_POWER_CUT}[group commits and rotation]"),
    ),
    Mutant(
        "record-sync",
        "the datasync of a record before it is renamed",
        "src/icestream/wal/records.py",
        (
            (
                "        file.datasync()\n    finally:\n        file.close()\n    files.replace",
                "    finally:\n        file.close()\n    files.replace",
            ),
        ),
        (f"{SAFEGUARDS}::test_a_new_log_is_there_after_every_power_cut_from_the_moment_it_is_open",),
    ),
    Mutant(
        "topic-directory-sync",
        "the sync of the directories above a new log",
        "src/icestream/wal/files.py",
        (
            (
                "        files.make_directory(path)\n    files.sync_directory(path.parent)\n",
                "        files.make_directory(path)\n",
            ),
        ),
        (f"{SAFEGUARDS}::test_a_new_log_is_there_after_every_power_cut_from_the_moment_it_is_open",),
    ),
    Mutant(
        "header-checksum",
        "the check of a frame header's checksum",
        "src/icestream/model/frames.py",
        (
            (
                '        return Corrupt("the header\'s checksum does not match")\n',
                "        pass\n",
            ),
        ),
        (
            f"{SAFEGUARDS}::test_a_changed_byte_of_a_frame_is_damage_and_never_other_bytes[header]",
            f"{BIT_FLIPS}::test_a_flip_in_a_segment_is_an_error_that_names_file_position_and_offsets[first segment]",
        ),
    ),
    Mutant(
        "body-checksum",
        "the check of a frame body's checksum",
        "src/icestream/model/frames.py",
        (('        return Corrupt("the body\'s checksum does not match")\n', "        pass\n"),),
        (
            f"{SAFEGUARDS}::test_a_changed_byte_of_a_frame_is_damage_and_never_other_bytes[body]",
            f"{BIT_FLIPS}::test_a_flip_in_a_segment_is_an_error_that_names_file_position_and_offsets[first segment]",
        ),
    ),
    Mutant(
        "record-checksum",
        "the check of a record's checksum",
        "src/icestream/wal/records.py",
        (("    if checksum != b", "    if checksum is None and checksum != b"),),
        (f"{BIT_FLIPS}::test_a_flip_in_a_record_is_an_error_that_names_the_remedy",),
    ),
    Mutant(
        "de-duplication",
        "the recognition of a batch that was stored before",
        "src/icestream/wal/log.py",
        (("if name and (earlier := self._producers.find(", "if False and (earlier := self._producers.find("),),
        (
            f"{SAFEGUARDS}::test_a_repeated_batch_is_stored_once_also_when_a_restart_lies_between",
            "tests/unit/wal/test_log.py::test_a_repeated_batch_is_recognised_after_a_restart",
        ),
    ),
    Mutant(
        "producer-sessions",
        "the refusal of a producer whose name another one has",
        "src/icestream/wal/log.py",
        (("if name and append.session:", "if False:"),),
        (
            "tests/unit/wal/test_sessions.py::test_the_last_that_was_opened_has_the_name",
            "tests/integration/flight/test_producer_names.py::test_what_many_acknowledge_under_one_name_is_all_there",
        ),
    ),
    Mutant(
        "torn-copy",
        "the copy of a torn tail",
        "src/icestream/wal/recovery.py",
        (("                rest.keep(self._files, self._directory, active.path)\n", "                pass\n"),),
        (
            f"{SAFEGUARDS}::test_a_copy_of_a_torn_tail_is_kept",
            f"{POWER_CUTS}::test_a_copy_of_every_torn_tail_is_kept",
        ),
    ),
    Mutant(
        "poisoning",
        "the refusal of everything after a failed write or sync",
        "src/icestream/wal/log.py",
        (("        self.state = LogState.FAILED\n        self._failure = error\n", "        self._failure = error\n"),),
        (f"{SAFEGUARDS}::test_after_a_failure_nothing_is_acknowledged_until_the_log_was_recovered",),
    ),
    Mutant(
        "vouching",
        "the word of a later frame for the bytes before it",
        "src/icestream/wal/recovery.py",
        (("        durable = max(durable, rest.vouched_position)\n", ""),),
        (
            f"{SAFEGUARDS}::test_lost_bytes_below_a_frame_that_was_written_after_their_sync_are_damage_not_a_torn_tail",
            f"{BIT_FLIPS}::test_a_flip_below_a_durable_frame_is_damage_even_if_no_checkpoint_covers_it",
        ),
    ),
    Mutant(
        "cut-back",
        "the cut back to the acknowledged end when a failed log is reopened",
        "src/icestream/wal/recovery.py",
        (("            limit = min(size, self._cut_at[1])\n", "            limit = size\n"),),
        (f"{SAFEGUARDS}::test_reopening_cuts_back_to_what_was_acknowledged",),
    ),
    Mutant(
        "write-again",
        "the second writing of what no successful sync vouches for",
        "src/icestream/wal/recovery.py",
        (
            (
                "        write_all(file, [file.read(min(_COPY_BYTES, end - position), position)], position)\n",
                "        pass\n",
            ),
        ),
        (f"{WRITE_FAULTS}::test_what_a_failed_sync_may_have_lost_is_not_shown_after_a_restart_unless_it_is_durable",),
    ),
    Mutant(
        "durable-end",
        "the limit of readers at the durable end",
        "src/icestream/wal/reader.py",
        (
            (
                "        if self.offset >= visible.end_offset:\n",
                "        if self.offset >= self._log._next_offset:\n",
            ),
            (
                "else visible.active_position\n        if self._path",
                "else self._log.context.files.size(segment.path)\n        if self._path",
            ),
        ),
        (f"{SAFEGUARDS}::test_a_reader_sees_nothing_that_is_not_durable",),
    ),
    Mutant(
        "directory-lock",
        "the lock against a second broker",
        "src/icestream/storage/logs.py",
        (
            (
                "            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
                "            fcntl.flock(descriptor, fcntl.LOCK_SH)\n",
            ),
        ),
        ("tests/unit/storage/test_topics.py::test_a_second_process_on_the_same_directory_is_refused",),
    ),
    Mutant(
        "ledger-on-conflict",
        "the look at the ledger after a refused commit",
        "src/icestream/pipeline/commit.py",
        (
            (
                "            if table.ledger.committed_offset != pending.start and not table.is_plain:\n",
                "            if False:\n",
            ),
        ),
        (f"{ZOMBIE}[1 commits later]",),
    ),
    Mutant(
        "ledger-on-commit",
        "the check of a commit's first offset against the ledger",
        "src/icestream/table/topic_table.py",
        (("        if start != ledger.committed_offset:\n", "        if False:\n"),),
        (f"{COMMITS}::test_a_range_that_does_not_begin_at_the_end_is_refused[sqlite-4]",),
    ),
    Mutant(
        "same-snapshot",
        "the requirement that nobody has committed since the table was loaded",
        "src/icestream/table/commit.py",
        (('        AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": parent_id}),\n', ""),),
        (f"{COMMITS}::test_of_two_with_the_same_state_one_commits[sqlite]",),
    ),
    Mutant(
        "epoch-on-commit",
        "the refusal of an epoch that is over",
        "src/icestream/table/topic_table.py",
        (("        if epoch < ledger.epoch:\n", "        if False:\n"),),
        (f"{COMMITS}::test_the_epoch_never_goes_back[sqlite]",),
    ),
    Mutant(
        "whole-range",
        "the check that a commit's files hold every message of its range that is not lost",
        "src/icestream/table/topic_table.py",
        (("held > end - start or held + lost.messages < end - start:\n", "held > end - start:\n"),),
        (f"{COMMITS}::test_a_message_that_is_neither_in_a_file_nor_lost_is_refused[sqlite]",),
    ),
    Mutant(
        "ledger-and-snapshot",
        "the comparison of a table's ledger with its newest snapshot",
        "src/icestream/table/ledger.py",
        (("        if said != str(ledger.committed_offset):\n", "        if False:\n"),),
        (
            "tests/unit/table/test_ledger.py::test_a_table_that_was_set_back_is_not_believed",
            "tests/unit/table/test_ledger.py::test_a_ledger_that_somebody_moved_is_not_believed",
        ),
    ),
    Mutant(
        "merge-order",
        "the order of offsets where a table's files overlap",
        "src/icestream/table/scan.py",
        ((".sort_by(self._request.columns.offset)", ""),),
        ("tests/unit/table/test_ordered.py::test_offsets_count_up_in_any_layout",),
    ),
    Mutant(
        "library-retry",
        "icestream's own commits: the library's, which are rebased and retried without a look at the ledger",
        "src/icestream/table/commit.py",
        (
            (
                OWN_COMMIT,
                LIBRARY_COMMIT,
            ),
        ),
        (f"{ZOMBIE}[1 commits later]",),
    ),
    Mutant(
        "range-stream-id",
        "the check that a range was read of the right stream",
        "src/icestream/client/range_reader.py",
        (("        if found != self._stream_id:\n", "        if False:\n"),),
        (f"{MADE_AGAIN}::test_messages_of_a_topic_made_again_never_come_into_the_kept_table_of_the_old_one",),
    ),
    Mutant(
        "table-stream-id",
        "the check that a table is the right stream's",
        "src/icestream/table/tables.py",
        (("            if state.ledger.stream_id != spec.stream_id:\n", "            if False:\n"),),
        (f"{MADE_AGAIN}::test_messages_of_a_topic_made_again_never_come_into_the_kept_table_of_the_old_one",),
    ),
    Mutant(
        "range-offsets",
        "the check that batches of a range follow on each other",
        "src/icestream/client/range_reader.py",
        (("        if first != self.next_offset + lost:\n", "        if False:\n"),),
        (f"{NO_TRACE}[a_batch_gets_lost]",),
    ),
    Mutant(
        "task-count",
        "the check that a task has written every message of its range",
        "src/icestream/pipeline/tasks.py",
        (("        if count != wanted:\n", "        if False:\n"),),
        (f"{NO_TRACE}[a_file_gets_lost]",),
    ),
    Mutant(
        "etcd-lost-answer",
        "finding out what became of a transaction whose answer was lost",
        "src/icestream/metadata/etcd/transactions.py",
        (("result = self._find_out(ticket, stamp, deadline, lost)", "result, _ = None, lost"),),
        (f"{LOST_ANSWERS}::test_a_swap_whose_answer_is_lost_happened_once",),
    ),
    Mutant(
        "etcd-ticket",
        "the condition that a transaction's ticket is unused",
        "src/icestream/metadata/etcd/transactions.py",
        (("compare=[*conditions, ticket.unused()],", "compare=conditions,"),),
        (f"{LOST_ANSWERS}::test_a_transaction_that_hangs_somewhere_cannot_happen_after_its_repetition",),
    ),
    Mutant(
        "etcd-watch-resume",
        "going on behind the last change after a watch lost its connection",
        "src/icestream/metadata/etcd/watch.py",
        (("start_revision=self._next_revision, progress_notify", "start_revision=0, progress_notify"),),
        (f"{ETCD_WATCHES}::test_a_watch_whose_connection_breaks_again_and_again_loses_and_repeats_nothing",),
    ),
    Mutant(
        "etcd-watch-bound",
        "waiting for a watch's reader before the next message is taken off the stream",
        "src/icestream/metadata/etcd/watch.py",
        (("while self._arrived and self._error is None:", "while False:"),),
        (f"{ETCD_WATCHES}::test_a_watch_that_nobody_reads_holds_little_and_holds_up_nobody",),
    ),
    Mutant(
        "etcd-fragments",
        "putting together a transaction that came in several messages",
        "src/icestream/metadata/etcd/watch.py",
        (("if self._incomplete and not answer.fragment:", "if self._incomplete:"),),
        (f"{ETCD_WATCHES}::test_a_transaction_larger_than_a_message_of_the_stream_is_handed_out_whole",),
    ),
    Mutant(
        "page-origin",
        "the check of a web page's origin",
        "src/icestream/server/http/events.py",
        (("    elif origin in allowed:\n", "    else:\n"),),
        (
            f"{HTTP_TESTS}/test_events.py::test_pages_of_other_origins_are_refused_unless_they_are_allowed",
            f"{HTTP_TESTS}/test_websocket.py::test_pages_of_other_origins_are_refused",
        ),
    ),
    Mutant(
        "stalled-client",
        "the end of connections that take nothing",
        "src/icestream/server/http/connection.py",
        (("            self._transport.abort()\n", "            pass\n"),),
        (f"{HTTP_TESTS}/test_events.py::test_a_client_that_reads_nothing_is_cut_off_in_the_end",),
    ),
    Mutant(
        "event-taken",
        "acknowledging an event only if the connection took it",
        "src/icestream/server/http/events.py",
        (("                if listens:\n", "                if True:\n"),),
        (f"{HTTP_TESTS}/test_events.py::test_what_a_client_that_hung_up_did_not_take_is_not_acknowledged",),
    ),
    Mutant(
        "own-messages",
        "the check that a consumer has what it acknowledges",
        "src/icestream/subscription/window.py",
        (("            held &= self._consumers(rows) == consumer\n", "            pass\n"),),
        (f"{SUBSCRIPTIONS}/test_types.py::test_another_consumers_messages_cannot_be_acknowledged",),
    ),
    Mutant(
        "slot-drain",
        "waiting for a key's messages before it moves to another consumer",
        "src/icestream/subscription/modes.py",
        (
            (
                "(self._owner != self._next) & ((self._held == 0) | (self._owner == _NOBODY))",
                "self._owner != self._next",
            ),
        ),
        (
            (
                f"{SUBSCRIPTIONS}/test_types.py::"
                "test_a_slot_moves_to_a_new_consumer_only_when_its_messages_are_acknowledged"
            ),
        ),
    ),
    Mutant(
        "vanished-consumer",
        "handing on what a consumer had when it ends",
        "src/icestream/subscription/subscription.py",
        (
            (
                "            self.answers.take_back(cursor, cursor.window.held_by(session.number), failed=False)\n",
                "            pass\n",
            ),
        ),
        (
            (
                f"{SUBSCRIPTIONS}/test_types.py::"
                "test_what_a_vanished_consumer_of_a_shared_subscription_had_goes_to_the_others"
            ),
        ),
    ),
    Mutant(
        "stale-progress",
        "the compare-and-swap of a subscription's progress",
        "src/icestream/subscription/progress_writer.py",
        (
            (
                "            [RevisionIs(write.subscription.key, write.subscription.revision) for write in writes],\n",
                "            [],\n",
            ),
        ),
        (
            (
                f"{SUBSCRIPTIONS}/test_progress.py::"
                "test_a_broker_that_lost_a_subscription_cannot_overwrite_the_others_progress"
            ),
        ),
    ),
    Mutant(
        "lost-answer",
        "knowing one's own write of progress again",
        "src/icestream/subscription/progress_writer.py",
        (("record.writer == self.writer and", "record.writer is None and"),),
        (f"{SUBSCRIPTIONS}/test_progress.py::test_a_write_whose_answer_was_lost_is_not_taken_for_another_brokers",),
    ),
    Mutant(
        "acknowledged-ahead",
        "passing over what was acknowledged before a restart",
        "src/icestream/subscription/cursor.py",
        (("            window.put_acknowledged(window.rows(expanded(done)))\n", "            pass\n"),),
        (f"{SUBSCRIPTIONS}/test_progress.py::test_what_was_acknowledged_does_not_come_again_after_a_restart",),
    ),
    Mutant(
        "unacknowledged-limit",
        "the limit of unacknowledged messages",
        "src/icestream/subscription/cursor.py",
        (
            (
                "        return self.window.floor + self._limits.max_unacknowledged_messages\n",
                "        return MAX_OFFSET\n",
            ),
        ),
        (f"{SUBSCRIPTIONS}/test_dispatch.py::test_deliveries_stay_within_the_limit_of_unacknowledged_messages",),
    ),
    Mutant(
        "buffer-limit",
        "the limit of what a subscription reads ahead",
        "src/icestream/subscription/cursor.py",
        (("        while excess > 0 and len(self._pieces) > 1:\n", "        while False:\n"),),
        (f"{SUBSCRIPTIONS}/test_dispatch.py::test_no_more_is_read_ahead_than_the_buffer_takes",),
    ),
    Mutant(
        "cloud-head",
        "the condition that nobody has changed a topic's head in the metadata store",
        "src/icestream/storage/cloud/registry.py",
        (("wanted = [RevisionIs(self._key, self._revision), *conditions]", "wanted = [*conditions]"),),
        (f"{UPLOADER}::test_an_owner_of_the_past_can_describe_nothing",),
    ),
    Mutant(
        "upload-read-back",
        "the look at an object after it was sent",
        "src/icestream/cloud/object_builder.py",
        (("            self._read_back(descriptor)\n        except", "            pass\n        except"),),
        (f"{UPLOADER}::test_an_object_that_the_store_garbled_is_not_described_but_sent_again",),
    ),
    Mutant(
        "offset-reservation",
        "the limit of reserved offsets",
        "src/icestream/wal/log.py",
        (("payload.message_count > self.offset_limit:", "payload.message_count > NO_LIMIT:"),),
        ("tests/integration/cloud/test_uploading.py::test_no_offset_is_given_out_before_it_is_reserved",),
    ),
    Mutant(
        "prune-read-back",
        "the look at cloud objects before the log relies on them",
        "src/icestream/storage/retention.py",
        (("        return min(below, confirmed_end(cloud, below))\n", "        return below\n"),),
        (
            "tests/integration/cloud/test_retention.py::test_an_object_that_was_lost_in_the_store_keeps_its_messages_in_the_log",
        ),
    ),
)


class Copy:
    """A copy of the tree to be mutated, and the tests run on it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ignored = shutil.ignore_patterns("__pycache__", ".hypothesis", "_build")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, directory / name, ignore=ignored)
            elif source.exists():
                shutil.copy(source, directory / name)
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")} | {
            "PYTHONPATH": f"{directory / 'src'}{os.pathsep}{directory}",
            # Two versions of a file within one second would have the same stamp.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        found = self._run("-c", "import icestream; print(icestream.__file__)").stdout.strip()
        if not Path(found).is_relative_to(directory):
            sys.exit(f"mutants: the tests would run on {found}, not on the copy")

    def mutate(self, mutant: Mutant) -> str | None:
        """Apply a mutant; what is wrong with it, if it cannot be applied."""
        path = self._directory / mutant.file
        text = path.read_text()
        for old, new in mutant.edits:
            if text.count(old) != 1:
                return f"stands {text.count(old)} times in {mutant.file}, not once: {old.strip()!r}"
            text = text.replace(old, new)
        path.write_text(text)
        return None

    def restore(self, mutant: Mutant) -> None:
        shutil.copy(ROOT / mutant.file, self._directory / mutant.file)

    def failing(self, tests: list[str]) -> tuple[set[str], str]:
        """Those of the tests that fail, and what pytest said. A run that does not end is a failure of all."""
        try:
            result = self._run("-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", "-rfE", *tests)
        except subprocess.TimeoutExpired:
            return set(tests), f"not done after {TIMEOUT_SECONDS} s"
        if result.returncode not in (0, 1):
            return set(), result.stdout + result.stderr
        lines = [line.split(" ", 1)[1] for line in result.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return {test for test in tests if any(_is_of(line, test) for line in lines)}, result.stdout

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self._directory,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )


def _is_of(line: str, test: str) -> bool:
    """Whether a line of pytest's summary is about a test, or about one case of it."""
    return line == test or line.startswith((f"{test} ", f"{test}["))


def check(copy: Copy, mutant: Mutant) -> str:
    """`killed`, or why not."""
    problem = copy.mutate(mutant)
    if problem is not None:
        return problem
    try:
        failing, _ = copy.failing(list(mutant.tests))
    finally:
        copy.restore(mutant)
    survived = [test for test in mutant.tests if test not in failing]
    return f"SURVIVED {', '.join(survived)}" if survived else "killed"


def run(chosen: list[Mutant]) -> bool:
    with tempfile.TemporaryDirectory(prefix="icestream-mutants-") as directory:
        copy = Copy(Path(directory))
        started = time.monotonic()
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        failing, said = copy.failing(tests)
        if failing or " passed" not in said:
            print(said)
            print("mutants: the named tests do not pass on the sound tree")
            return False
        print(f"sound tree: {len(tests)} named tests pass ({time.monotonic() - started:.0f} s)\n")
        width = max(len(mutant.name) for mutant in chosen)
        outcomes = []
        for mutant in chosen:
            started = time.monotonic()
            outcomes.append(check(copy, mutant))
            seconds = time.monotonic() - started
            print(f"{mutant.name:{width}}  {seconds:4.0f} s  without {mutant.removes}: {outcomes[-1]}", flush=True)
        killed = outcomes.count("killed")
        print(f"\n{killed} of {len(chosen)} mutants killed")
        return killed == len(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description="Remove a safeguard at a time and see a test fail.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to try; all where none is named")
    parser.add_argument("--list", action="store_true", help="print the mutants' names and what they remove")
    arguments = parser.parse_args()
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    if arguments.list:
        for mutant in MUTANTS:
            print(f"{mutant.name:24} {mutant.removes}")
        return
    if unknown := [name for name in arguments.names if name not in by_name]:
        parser.error(f"there is no mutant {', '.join(unknown)}; use {', '.join(by_name)}")
    chosen = [by_name[name] for name in arguments.names] or list(MUTANTS)
    sys.exit(0 if run(chosen) else 1)


if __name__ == "__main__":
    main()
