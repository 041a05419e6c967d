"""Verifies one topic."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from icestream.model.enums import StorageKind
from icestream.model.errors import IcestreamError, PermissionDeniedError, UnauthenticatedError
from icestream.model.messages import OFFSET
from icestream.model.names import TopicName
from icestream.model.quarantine import quarantined_ranges
from icestream.storage.cloud.topic_cloud import TopicCloud
from icestream.storage.verify.cloud import CloudAudit, JoinedLog
from icestream.storage.verify.findings import Finding, Verification
from icestream.storage.verify.logs import LogView
from icestream.storage.verify.reconcile import Reconciliation
from icestream.storage.verify.tables import (
    FindTable,
    TableLayoutAudit,
    check_quarantine,
    find_all,
    highest_committed_offset,
    note_plain_files,
)
from icestream.table import TopicTable, ordered_scan, read_contents

FindCloud = Callable[[TopicName, str | None], TopicCloud | None]
"""A topic's part in the cloud, of the stream or, where that is not known, of the newest; None if there is none."""
Missing = Callable[[TopicName], str | None]
"""Why a topic ought to have a log, and has lost it; None if it need not have one."""
Progress = Callable[[int, int], None]
"""Told how many offsets are checked, and of how many."""


def verify_topic(
    topic: TopicName,
    find_log: Callable[[TopicName], LogView | None],
    tables: FindTable,
    progress: Progress = lambda _done, _all: None,
    find_cloud: FindCloud = lambda _topic, _stream_id: None,
    *,
    missing: Missing = lambda _topic: None,
) -> Verification:
    """Check a topic's log, cloud objects and table against each other. What is wrong is in the findings, not raised.

    Table and objects are looked at before the log: what they hold the log held before. What `missing`
    says of a topic without a log is a finding.
    """
    report = Verification(topic)
    began = time.monotonic()
    try:
        log = find_log(topic)
        known = log.known_committed if log is not None else 0
        found = find_all(topic, tables)
        table = found[0] if found else None
        _check_catalog(known, found, report)
        stream_id = log.stream_id if log is not None else table.ledger.stream_id if table is not None else None
        cloud = find_cloud(topic, stream_id)
        audit = CloudAudit(cloud, report) if cloud is not None else None
        log = find_log(topic)
        joined = _join(topic, log, audit, report)
        loss = missing(topic) if log is None else None
        if loss is not None:
            report.add(Finding("damaged", loss))
        elif table is None and joined is None:
            report.add(Finding("damaged", "there is no such topic: neither a log nor a table has its name"))
        if table is not None or joined is not None:
            _note_log(log, report)
            _verify(joined, table, report, progress, also=found[1:])
        for other in found[1:]:
            _verify_other(topic, found, other, find_log(topic), cloud, report, progress)
        note_plain_files(found, report)
    except (PermissionDeniedError, UnauthenticatedError):
        raise  # who asks may not look, which says nothing of what there is
    except IcestreamError as error:
        report.add(Finding("unchecked" if error.retryable else "damaged", error.message, place=error.place))
    report.seconds = time.monotonic() - began
    return report


def _check_catalog(known: int, tables: Sequence[TopicTable], report: Verification) -> None:
    """A broker that has seen more in the table than these settings show reads another catalog."""
    found = highest_committed_offset(tables)
    if found < known:
        text = f"the broker has read {known} messages in the table, the catalog of these settings has {found}"
        report.add(Finding("ledger", f"{text}: give the broker's own --data or --config"))


def _verify_other(
    topic: TopicName,
    tables: Sequence[TopicTable],
    table: TopicTable,
    log: LogView | None,
    cloud: TopicCloud | None,
    report: Verification,
    progress: Progress,
) -> None:
    """Verify the topic's second table; prefix its notes with its name."""
    own = Verification(table.name)
    audit = CloudAudit(cloud, own) if cloud is not None else None
    _verify(_join(topic, log, audit, own), table, own, progress, also=[one for one in tables if one is not table])
    report.parquet_files, report.parquet_rows = own.files, own.rows
    for finding in own.findings:
        if finding not in report.findings:
            report.add(replace(finding, place=finding.place or str(table.name)))
    report.quarantined += own.quarantined
    report.further_findings += own.further_findings
    report.notes += [f"{table.name}: {note}" for note in own.notes]


def _join(topic: TopicName, log: LogView | None, audit: CloudAudit | None, report: Verification) -> LogView | None:
    """The log with what the cloud holds before it, if both fit together."""
    if audit is None or not audit.objects:
        return log
    joined = JoinedLog(topic, audit.objects[0].stream_id, log, audit, report)
    if log is None or audit.end_offset >= log.start_offset:
        return joined
    for _ in audit.batches():  # they are checked, and are of no use for what lies behind them
        pass
    if log.storage != StorageKind.TABLE:
        text = "the messages are neither in the cloud, nor in the log any more"
        report.add(Finding("gap", text, audit.end_offset, log.start_offset - 1))
    return log


def _note_log(log: LogView | None, report: Verification) -> None:
    if log is not None:
        report.stream_id, report.log_start, report.durable_end = log.stream_id, log.start_offset, log.durable_end
        for problem in log.problems:
            report.add(Finding("damaged", f"the log: {problem}"))


def _verify(
    log: LogView | None,
    table: TopicTable | None,
    report: Verification,
    progress: Progress,
    *,
    also: Sequence[TopicTable] = (),
) -> None:
    if table is None:
        assert log is not None
        _read_log(log, report, progress)
        return
    ledger = table.ledger
    report.committed_offset = ledger.committed_offset
    if log is not None and ledger.stream_id != log.stream_id:
        report.add(Finding("stream", f"the table belongs to the stream {ledger.stream_id}, the log is {log.stream_id}"))
        return
    report.stream_id = ledger.stream_id
    if log is not None and ledger.committed_offset > log.durable_end:
        text = f"the table counts messages below {ledger.committed_offset}, the log ends at {log.durable_end}"
        report.add(Finding("ledger", text, log.durable_end, ledger.committed_offset - 1))
    if log is not None and ledger.committed_offset < log.start_offset <= highest_committed_offset(also):
        behind = f"{log.start_offset - ledger.committed_offset} messages before the log are in another table alone"
        report.notes.append(f"it is behind: {behind}")
    elif log is not None and ledger.committed_offset < log.start_offset:
        text = "the messages are neither in the table, nor in the log or the cloud any more"
        report.add(Finding("gap", text, ledger.committed_offset, log.start_offset - 1))
    check_quarantine(table, report)
    aside = quarantined_ranges(entry for one in (table, *also) for entry in one.quarantined)
    contents = read_contents(table)
    layout = TableLayoutAudit(contents, report)
    layout.check_overlaps()
    layout.check_delete_files()
    total = ledger.committed_offset
    work = Reconciliation(
        log,
        total,
        table.stream_schema,
        report,
        lambda done: progress(done, total),
        table.lost_ranges,
        aside,
        table.removed_ranges,
    )
    work.run(ordered_scan(table, on_row_group=layout.take))
    report.notes += [_removal_note(removal) for removal in table.removals]


def _removal_note(removal: dict[str, Any]) -> str:
    by = removal.get("engine") or "an engine that does not name itself"
    return (
        f"snapshot {removal.get('snapshot_id')} (operation {removal.get('operation')}, by {by}) deleted rows, and that "
        f"was accepted: {removal.get('messages')} messages from offset {removal.get('first_offset')} on"
    )


def _read_log(log: LogView, report: Verification, progress: Progress) -> None:
    """A topic that has no table, or none yet: every frame is read and checked."""
    if log.start_offset and log.storage == StorageKind.TABLE:
        report.add(Finding("gap", "the log does not begin at 0, and there is no table", 0, log.start_offset - 1))
    read = 0
    for batch in log.batches():
        read += batch.num_rows
        progress(batch.column(OFFSET)[-1].as_py() + 1, log.durable_end)
    report.lost = log.durable_end - log.start_offset - read
    report.waiting = read if log.storage == StorageKind.TABLE else 0
