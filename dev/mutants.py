"""The mutation check: take one safeguard away at a time, and see that the tests named for it fail.

    python dev/mutants.py                     all of them
    python dev/mutants.py --list              their names
    python dev/mutants.py --check             see that each finds its code and its tests; runs no test
    python dev/mutants.py commit-sync ...     some of them

Works on a copy of the tree. First the named tests must pass on the sound copy. Then, for each mutant, every test named
for it must fail. Exit code 1 if one does not, or if the code that a mutant changes is not there any more.

A mutant names a function and the statement in it by structure: see `dev/mutation.py`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutation import (
    Argument,
    Body,
    Call,
    Edit,
    Element,
    NotFoundError,
    Swap,
    Unwrap,
    always,
    drop,
    mutated,
    never,
    test_functions,
)

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("src", "icestream")
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
LOST_RESPONSES = "tests/fault/metadata/test_lost_responses.py"
ETCD_WATCHES = "tests/fault/metadata/test_watches.py"
HTTP_TESTS = "tests/integration/http"
UPLOADER = "tests/unit/cloud/test_uploader.py"
SUBSCRIPTIONS = "tests/unit/subscription"
NO_TRACE = "tests/fault/pipeline/test_no_trace.py::test_a_pass_that_fails_leaves_no_trace_in_the_table"

LIBRARY_COMMIT = """\
table = state.iceberg
with table.transaction() as transaction:
    with transaction.update_snapshot(snapshot_properties=ledger.to_properties()).fast_append() as append:
        for file in files:
            append.append_data_file(file.data_file)
    transaction.set_properties(ledger.to_properties())
return state.with_table(table.refresh())
"""


@dataclass(frozen=True)
class Mutant:
    name: str
    removes: str
    edits: tuple[tuple[str, Edit], ...]
    """Functions, as `package:Class.method`, and what changes in them."""
    tests: tuple[str, ...]
    """Each of these must fail; of one with parameters, at least one case."""


MUTANTS = (
    Mutant(
        "commit-sync",
        "the datasync before an acknowledgement",
        (("wal:SegmentWriter.append", Call("write_durably", instead="write_all")),),
        (
            f"{SAFEGUARDS}::test_an_acknowledged_batch_survives_every_power_cut",
            f"{ANY_POWER_CUT}[group commits and rotation]",
        ),
    ),
    Mutant(
        "seal-sync",
        "the datasync of a segment's end before its successor is made",
        (("wal:SegmentWriter.seal", drop("datasync")),),
        (f"{SAFEGUARDS}::test_so_do_the_segments_before_the_active_one_and_the_names_of_all",),
    ),
    Mutant(
        "segment-directory-sync",
        "the sync of the directory when a segment is made",
        (("wal:Segments._begin", drop("sync_directory")),),
        (f"{POWER_CUTS}::test_every_state_after_a_power_cut_of_a_small_log_recovers",),
    ),
    Mutant(
        "record-directory-sync",
        "the sync of the directory when a record is replaced",
        (("wal:write_record", drop("sync_directory")),),
        (EVERY_STATE, f"{ANY_POWER_CUT}[group commits and rotation]"),
    ),
    Mutant(
        "record-sync",
        "the datasync of a record before it is renamed",
        (("wal:write_file", drop("datasync")),),
        (f"{SAFEGUARDS}::test_a_new_log_is_there_after_every_power_cut_from_the_moment_it_is_open",),
    ),
    Mutant(
        "topic-directory-sync",
        "the sync of the directories above a new log",
        (("wal:make_directories", drop("sync_directory")),),
        (f"{SAFEGUARDS}::test_a_new_log_is_there_after_every_power_cut_from_the_moment_it_is_open",),
    ),
    Mutant(
        "header-checksum",
        "the check of a frame header's checksum",
        (("model.frames:decode", never("xxh3_64_intdigest")),),
        (
            f"{SAFEGUARDS}::test_a_changed_byte_of_a_frame_is_damage_and_never_other_bytes[header]",
            f"{BIT_FLIPS}::test_a_flip_in_a_segment_is_an_error_that_names_file_position_and_offsets[first segment]",
        ),
    ),
    Mutant(
        "body-checksum",
        "the check of a frame body's checksum",
        (("model.frames:decode", never("_hash")),),
        (
            f"{SAFEGUARDS}::test_a_changed_byte_of_a_frame_is_damage_and_never_other_bytes[body]",
            f"{BIT_FLIPS}::test_a_flip_in_a_segment_is_an_error_that_names_file_position_and_offsets[first segment]",
        ),
    ),
    Mutant(
        "record-checksum",
        "the check of a record's checksum",
        (("wal:read_record", never("xxh3_64_hexdigest")),),
        (f"{BIT_FLIPS}::test_a_flip_in_a_record_is_an_error_that_names_the_remedy",),
    ),
    Mutant(
        "de-duplication",
        "the recognition of a batch that was stored before",
        (("wal:Log._admit", never("find")),),
        (
            f"{SAFEGUARDS}::test_a_repeated_batch_is_stored_once_also_when_a_restart_lies_between",
            "tests/unit/wal/test_log.py::test_a_repeated_batch_is_recognised_after_a_restart",
        ),
    ),
    Mutant(
        "producer-sessions",
        "the refusal of a producer whose name another one has",
        (("wal:Log._admit", drop("_sessions", "check")),),
        (
            "tests/unit/wal/test_sessions.py::test_the_last_that_was_opened_has_the_name",
            "tests/integration/flight/test_producer_names.py::test_only_the_last_of_several_is_acknowledged_whoever_sends_first",
        ),
    ),
    Mutant(
        "torn-copy",
        "the copy of a torn tail",
        (("wal:Recovery._judge_end", drop("keep")),),
        (
            f"{SAFEGUARDS}::test_a_copy_of_a_torn_tail_is_kept",
            f"{POWER_CUTS}::test_a_copy_of_every_torn_tail_is_kept",
        ),
    ),
    Mutant(
        "poisoning",
        "the refusal of everything after a failed write or sync",
        (("wal:Log._failed", drop("FAILED")),),
        (f"{SAFEGUARDS}::test_after_a_failure_nothing_is_acknowledged_until_the_log_was_recovered",),
    ),
    Mutant(
        "vouching",
        "the word of a later frame for the bytes before it",
        (("wal:Recovery._judge_end", drop("proven_position")),),
        (
            f"{SAFEGUARDS}::test_lost_bytes_below_a_frame_that_was_written_after_their_sync_are_damage_not_a_torn_tail",
            f"{BIT_FLIPS}::test_a_flip_below_a_durable_frame_is_damage_even_if_no_checkpoint_covers_it",
        ),
    ),
    Mutant(
        "cut-back",
        "the cut back to the acknowledged end when a failed log is reopened",
        (("wal:Recovery._scan_active", drop("min", "_cut_at")),),
        (f"{SAFEGUARDS}::test_reopening_cuts_back_to_what_was_acknowledged",),
    ),
    Mutant(
        "write-again",
        "the second writing of what no successful sync vouches for",
        (("wal:_write_again", drop("write_all")),),
        (f"{WRITE_FAULTS}::test_what_a_failed_sync_may_have_lost_is_not_shown_after_a_restart_unless_it_is_durable",),
    ),
    Mutant(
        "durable-end",
        "the limit of readers at the durable end",
        (
            ("wal:LogReader.read", Swap(("end_offset",), by="self._log._next_offset", which=(1, 2))),
            ("wal:LogReader._read_file", Swap(("active_position",), by="self._log.context.files.size(segment.path)")),
        ),
        (f"{SAFEGUARDS}::test_a_reader_sees_nothing_that_is_not_durable",),
    ),
    Mutant(
        "directory-lock",
        "the lock against a second broker",
        (("storage:exclusive_directory", Swap(("LOCK_EX", "LOCK_NB"), by="fcntl.LOCK_SH")),),
        ("tests/unit/storage/test_topics.py::test_a_second_process_on_the_same_directory_is_refused",),
    ),
    Mutant(
        "ledger-on-conflict",
        "the look at the ledger after a refused commit",
        (("pipeline:commit", never("committed_offset")),),
        (f"{ZOMBIE}[1 commits later]",),
    ),
    Mutant(
        "ledger-on-commit",
        "the check of a commit's first offset against the ledger",
        (("table:check_plan", never("committed_offset")),),
        (f"{COMMITS}::test_a_range_that_does_not_begin_at_the_end_is_refused[sqlite-4]",),
    ),
    Mutant(
        "same-snapshot",
        "the requirement that nobody has committed since the table was loaded",
        (("table:_same_state", Element(("AssertRefSnapshotId",))),),
        (f"{COMMITS}::test_of_two_with_the_same_state_one_commits[sqlite]",),
    ),
    Mutant(
        "epoch-on-commit",
        "the refusal of an epoch that is over",
        (("table:check_plan", never("epoch")),),
        (f"{COMMITS}::test_the_epoch_never_goes_back[sqlite]",),
    ),
    Mutant(
        "whole-range",
        "the check that a commit's files hold every message of its range that is not lost",
        (("table:check_plan", Element(("lost", "count"))),),
        (f"{COMMITS}::test_a_message_that_is_neither_in_a_file_nor_lost_is_refused[sqlite]",),
    ),
    Mutant(
        "ledger-and-snapshot",
        "the comparison of a table's ledger with its newest snapshot",
        (("table:read_ledger", never("committed_offset")),),
        (
            "tests/unit/table/test_ledger.py::test_a_table_that_was_set_back_is_not_believed",
            "tests/unit/table/test_ledger.py::test_a_ledger_that_somebody_moved_is_not_believed",
        ),
    ),
    Mutant(
        "merge-order",
        "the order of offsets where a table's files overlap",
        (("table:_Scan._merged", Unwrap("sort_by")),),
        ("tests/unit/table/test_ordered.py::test_offsets_count_up_in_any_layout",),
    ),
    Mutant(
        "library-retry",
        "icestream's own commits: the library's, which are rebased and retried without a look at the ledger",
        (("table:commit_files", Body(LIBRARY_COMMIT)),),
        (f"{ZOMBIE}[1 commits later]",),
    ),
    Mutant(
        "range-stream-id",
        "the check that a range was read of the right stream",
        (("client:_check_stream", never("stream_id")),),
        (f"{MADE_AGAIN}::test_messages_of_a_topic_made_again_never_come_into_the_kept_table_of_the_old_one",),
    ),
    Mutant(
        "table-stream-id",
        "the check that a table is the right stream's",
        (("table:Tables.open", never("stream_id")),),
        (f"{MADE_AGAIN}::test_messages_of_a_topic_made_again_never_come_into_the_kept_table_of_the_old_one",),
    ),
    Mutant(
        "range-offsets",
        "the check that batches of a range follow on each other",
        (("client:RangeReader._following", never("next_offset", body=("DamagedError",))),),
        (f"{NO_TRACE}[a_batch_gets_lost]",),
    ),
    Mutant(
        "task-count",
        "the check that a task has written every message of its range",
        (("pipeline:_write_range", never(body=("_incomplete",), which=(2, 2))),),
        (f"{NO_TRACE}[a_file_gets_lost]",),
    ),
    Mutant(
        "etcd-lost-answer",
        "finding out what became of a transaction whose answer was lost",
        (("metadata:GuardedTransactions.transaction", Swap(("_find_out",), by="None")),),
        (f"{LOST_RESPONSES}::test_a_swap_whose_answer_is_lost_happened_once",),
    ),
    Mutant(
        "etcd-ticket",
        "the condition that a transaction's ticket is unused",
        (("metadata:GuardedTransactions.transaction", Element(("unused",))),),
        (f"{LOST_RESPONSES}::test_a_transaction_that_hangs_somewhere_cannot_happen_after_its_repetition",),
    ),
    Mutant(
        "etcd-watch-resume",
        "going on behind the last change after a watch lost its connection",
        (("metadata:WatchStream._follow", Argument("start_revision", "0")),),
        (f"{ETCD_WATCHES}::test_a_watch_whose_connection_breaks_again_and_again_loses_and_repeats_nothing",),
    ),
    Mutant(
        "etcd-watch-bound",
        "waiting for a watch's reader before the next message is taken off the stream",
        (("metadata:WatchStream._take_in", never("_arrived", "_error")),),
        (f"{ETCD_WATCHES}::test_a_watch_that_nobody_reads_holds_little_and_holds_up_nobody",),
    ),
    Mutant(
        "etcd-fragments",
        "putting together a transaction that came in several messages",
        (("metadata:WatchStream._take_in", Element(("fragment",))),),
        (f"{ETCD_WATCHES}::test_a_transaction_larger_than_a_message_of_the_stream_is_handed_out_whole",),
    ),
    Mutant(
        "page-origin",
        "the check of a web page's origin",
        (("server:check_origin", always(body=("Access-Control-Allow-Origin",))),),
        (
            f"{HTTP_TESTS}/test_events.py::test_pages_of_other_origins_are_refused_unless_they_are_allowed",
            f"{HTTP_TESTS}/test_websocket.py::test_pages_of_other_origins_are_refused",
        ),
    ),
    Mutant(
        "stalled-client",
        "the end of connections that take nothing",
        (("server:StallWatch._check", drop("abort")),),
        (f"{HTTP_TESTS}/test_events.py::test_a_client_that_reads_nothing_is_cut_off_in_the_end",),
    ),
    Mutant(
        "event-taken",
        "acknowledging an event only if the connection took it",
        (("server:EventsApi._deliver", always(body=("delivered", "grant"))),),
        (f"{HTTP_TESTS}/test_events.py::test_what_a_client_that_hung_up_did_not_take_is_not_acknowledged",),
    ),
    Mutant(
        "own-messages",
        "the check that a consumer has what it acknowledges",
        (("subscription:Window.held_in", drop("_consumers")),),
        (f"{SUBSCRIPTIONS}/test_types.py::test_another_consumers_messages_cannot_be_acknowledged",),
    ),
    Mutant(
        "slot-drain",
        "waiting for a key's messages before it moves to another consumer",
        (("subscription:KeySharedMode._move", Element(("_held", "_NOBODY"))),),
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
        (("subscription:SubscriptionState.disconnect", drop("take_back")),),
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
        (("subscription:ProgressWriter._write", Element(("RevisionIs",))),),
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
        (("subscription:ProgressWriter._is_ours", Body("return False")),),
        (f"{SUBSCRIPTIONS}/test_progress.py::test_a_write_whose_answer_was_lost_is_not_taken_for_another_brokers",),
    ),
    Mutant(
        "acknowledged-ahead",
        "passing over what was acknowledged before a restart",
        (("subscription:Cursor._admit", drop("put_acknowledged")),),
        (f"{SUBSCRIPTIONS}/test_progress.py::test_what_was_acknowledged_does_not_come_again_after_a_restart",),
    ),
    Mutant(
        "unacknowledged-limit",
        "the limit of unacknowledged messages",
        (("subscription:Cursor.limit", Swap(("max_unacknowledged_messages",), by="(1 << 62)")),),
        (f"{SUBSCRIPTIONS}/test_dispatch.py::test_deliveries_stay_within_the_limit_of_unacknowledged_messages",),
    ),
    Mutant(
        "buffer-limit",
        "the limit of what a subscription reads ahead",
        (("subscription:Cursor._forget", never(body=("pop",))),),
        (f"{SUBSCRIPTIONS}/test_dispatch.py::test_no_more_is_read_ahead_than_the_buffer_takes",),
    ),
    Mutant(
        "cloud-head",
        "the condition that nobody has changed a topic's head in the metadata store",
        (("storage:MetadataRegistry._change", Element(("RevisionIs",))),),
        (f"{UPLOADER}::test_an_owner_of_the_past_can_describe_nothing",),
    ),
    Mutant(
        "upload-read-back",
        "the look at an object after it was sent",
        (("cloud:ObjectBuilder.build", drop("_read_back")),),
        (f"{UPLOADER}::test_an_object_that_the_store_garbled_is_not_described_but_sent_again",),
    ),
    Mutant(
        "offset-reservation",
        "the limit of reserved offsets",
        (("wal:Log._admit", never("offset_limit")),),
        ("tests/integration/cloud/test_uploading.py::test_no_offset_is_given_out_before_it_is_reserved",),
    ),
    Mutant(
        "prune-read-back",
        "the look at cloud objects before the log relies on them",
        (("storage:_removable_below", Swap(("confirmed_end",), by="(1 << 62)")),),
        (
            "tests/integration/cloud/test_retention.py::test_an_object_that_was_lost_in_the_store_keeps_its_messages_in_the_log",
        ),
    ),
)


class Copy:
    """A copy of the tree to be mutated, and the tests run on it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._changed: set[Path] = set()
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
        """Apply a mutant; return what is wrong with it, if it cannot be applied."""
        try:
            for target, edit in mutant.edits:
                path, text = mutated(self._directory / SOURCE, target, edit)
                path.write_text(text)
                self._changed.add(path)
        except NotFoundError as error:
            return f"NOT FOUND: {error}"
        return None

    def restore(self) -> None:
        for path in self._changed:
            shutil.copy(ROOT / path.relative_to(self._directory), path)
        self._changed.clear()

    def failing(self, tests: list[str]) -> tuple[set[str], str]:
        """Return the tests that fail, and pytest's output. If the run does not end in time, all count as failed."""
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
    """Return whether a line of pytest's summary is about a test, or about one case of it."""
    return line == test or line.startswith((f"{test} ", f"{test}["))


def check(copy: Copy, mutant: Mutant) -> str:
    """Return `killed`, or why not."""
    try:
        if (problem := copy.mutate(mutant)) is not None:
            return problem
        failing, _ = copy.failing(list(mutant.tests))
    finally:
        copy.restore()
    survived = [test for test in mutant.tests if test not in failing]
    return f"SURVIVED {', '.join(survived)}" if survived else "killed"


def missing(mutants: Sequence[Mutant]) -> list[str]:
    """Return which mutants do not find their code or their tests any more."""
    problems = []
    for mutant in mutants:
        for target, edit in mutant.edits:
            try:
                mutated(ROOT / SOURCE, target, edit)
            except NotFoundError as error:
                problems.append(f"{mutant.name}: {target}: {error}")
        for test in mutant.tests:
            file, _, name = test.partition("::")
            if name.partition("[")[0] not in test_functions(ROOT / file):
                problems.append(f"{mutant.name}: there is no test {test}")
    return problems


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
    parser.add_argument("--check", action="store_true", help="only see that each finds its code and its tests")
    arguments = parser.parse_args()
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    if arguments.list:
        for mutant in MUTANTS:
            print(f"{mutant.name:24} {mutant.removes}")
        return
    if arguments.check:
        problems = missing(MUTANTS)
        print("\n".join(problems) or f"{len(MUTANTS)} mutants find their code and their tests")
        sys.exit(1 if problems else 0)
    if unknown := [name for name in arguments.names if name not in by_name]:
        parser.error(f"there is no mutant {', '.join(unknown)}; use {', '.join(by_name)}")
    chosen = [by_name[name] for name in arguments.names] or list(MUTANTS)
    sys.exit(0 if run(chosen) else 1)


if __name__ == "__main__":
    main()
