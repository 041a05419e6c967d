"""`icestream table`: bring tables back into a lost catalog, and accept rows that another engine deleted."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from icestream.cli.options import config_option, data_option, json_option
from icestream.cli.output import count_text, plural, print_json
from icestream.cli.settings import make_files_private, read_settings, require_shared_catalog
from icestream.config import Settings
from icestream.model.enums import StorageFormat
from icestream.model.errors import InvalidRequestError, TopicNotFoundError
from icestream.model.names import TopicName
from icestream.storage import TopicRecord, open_existing_store, stored_records
from icestream.storage.verify import FindTable, find_all, open_tables
from icestream.table import Registration, RemovedRows, Tables, TopicTable, find_registration, register

dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")


@click.group(name="table", epilog="Example: icestream table register --all --dry-run")
def command() -> None:
    """Bring tables back into a lost catalog; accept rows that another engine deleted.

    The settings (--config or --data) name the catalog and the metadata store; no broker is needed.
    """


@command.command(name="register", epilog="Example: icestream table register default/events")
@click.argument("topic", required=False)
@click.option("--all", "everything", is_flag=True, help="All topics.")
@click.option(
    "--location",
    metavar="URI",
    help="The table's folder, if it is not where the catalog puts tables. Only with TOPIC.",
)
@dry_run_option
@config_option
@data_option
@json_option
def register_(
    topic: str | None,
    everything: bool,
    location: str | None,
    dry_run: bool,
    config_file: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Register tables again that the catalog has lost, from their metadata files in the warehouse.

    Takes the newest metadata file that belongs to the topic's stream and names only files that exist. A table that the
    catalog has is replaced only if it ends before that file does. No file is written or removed. A running broker and
    pipeline find the table by themselves.

    Exits with 1 if nothing was found for a topic that was named.
    """
    if (topic is None) != everything or (everything and location is not None):
        raise click.UsageError("Name a topic, or give --all without --location.")
    make_files_private()
    settings = read_settings(config_file, {"data_dir": data})
    require_shared_catalog(settings)
    results = list(_register_all(settings, topic, location, dry_run=dry_run))
    if as_json:
        print_json({"dry_run": dry_run, "tables": results})
    else:
        for result in results:
            click.echo(_line(result, dry_run=dry_run))
            for reason in result["passed_over"]:
                click.echo(f"  passed over: {reason}")
        done = sum(result["registered"] for result in results)
        click.echo(f"{plural(done, 'table')} {'would be' if dry_run else 'was' if done == 1 else 'were'} registered")
    if topic is not None and not any(result["metadata_location"] for result in results):
        raise click.exceptions.Exit(1)


def _register_all(
    settings: Settings, topic: str | None, location: str | None, *, dry_run: bool
) -> Iterator[dict[str, Any]]:
    with open_existing_store(settings) as metadata:
        records = [record for record in stored_records(metadata) if record.has_table]
    if topic is not None:
        name = TopicName.parse(topic)
        records = [record for record in records if record.name == name]
        if not records:
            raise TopicNotFoundError(
                "the metadata store has no topic of this name that has a table",
                operation="register table",
                place=str(name),
                remedy="give the broker's own --data or --config; if its metadata is lost too, start the broker first: "
                "it adopts its logs",
            )
    tables = Tables(settings)
    try:
        with open_tables(settings) as present:
            found = [one for record in records for one in _find(tables, present, record, location)]
        for record, table, registration in found:
            if registration is not None and registration.is_needed and not dry_run:
                register(tables, registration)
            yield _result(record, table, registration)
    finally:
        tables.close()


def _find(
    tables: Tables, present: FindTable, record: TopicRecord, location: str | None
) -> Iterator[tuple[TopicRecord, TopicName, Registration | None]]:
    """Yield what is to be registered for a topic: its own table, and its Parquet copy if there is one."""
    names = StorageFormat.BOTH.all_tables(record.name)
    found = [
        (record, name, find_registration(tables, name, record.stream_id, present.find(name), location))
        for name in (names[:1] if location is not None else names)
    ]
    with_files = [one for one in found if one[2] is not None]
    yield from with_files or found[:1]


def _result(record: TopicRecord, table: TopicName, registration: Registration | None) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "table": str(table),
        "metadata_location": registration.metadata_location if registration else None,
        "snapshot_id": registration.snapshot_id if registration else None,
        "committed_offset": registration.committed_offset if registration else None,
        "present_offset": registration.present_offset if registration else None,
        "registered": registration is not None and registration.is_needed,
        "passed_over": list(registration.passed_over) if registration else [],
    }


def _line(result: dict[str, Any], *, dry_run: bool) -> str:
    if result["metadata_location"] is None:
        return f"{result['topic']}: no metadata file of the topic's table was found"
    ends = f"messages below offset {count_text(result['committed_offset'])}"
    if not result["registered"]:
        return f"{result['table']}: the catalog has the table with all {ends}"
    return f"{result['table']}: {'would register' if dry_run else 'registered'} {result['metadata_location']}, {ends}"


@command.command(name="accept-deletes", epilog="Example: icestream table accept-deletes default/events --dry-run")
@click.argument("topic")
@click.option(
    "--by-unknown",
    is_flag=True,
    help="Accept missing rows also if no snapshot that the table still has tells who deleted them.",
)
@dry_run_option
@config_option
@data_option
@json_option
def accept_deletes(
    topic: str, by_unknown: bool, dry_run: bool, config_file: Path | None, data: Path | None, as_json: bool
) -> None:
    """Accept that another engine deleted rows of TOPIC's table: readers pass over them from then on.

    Notes the offsets and who deleted them in the table's properties. Data files that delete files concern are written
    again without the deleted rows. Log and cloud objects may still have the messages until their retention ends.
    """
    make_files_private()
    settings = read_settings(config_file, {"data_dir": data})
    require_shared_catalog(settings)
    name = TopicName.parse(topic)
    results = []
    with open_tables(settings) as tables:
        found = find_all(name, tables)
        if not found:
            raise TopicNotFoundError("the catalog has no table of this topic", operation="accept deletes", place=topic)
        for table in found:
            try:
                results.append((table, table.accept_deletes(dry_run=dry_run, by_unknown=by_unknown)))
            except InvalidRequestError:
                if len(found) == 1:
                    raise
    if as_json:
        print_json({"dry_run": dry_run, "tables": [_accepted(table, rows) for table, rows in results]})
        return
    for table, rows in results:
        for snapshot in rows.snapshots:
            click.echo(f"{table.name}: {snapshot}")
        done = "would accept" if dry_run else "accepted"
        click.echo(f"{table.name}: {done} the removal of {plural(rows.count, 'row')}")
        if rows.rewritten_files:
            click.echo(f"{table.name}: {plural(rows.rewritten_files, 'data file')} written again without deleted rows")
    if not results:
        click.echo("no row is missing")


def _accepted(table: TopicTable, rows: RemovedRows) -> dict[str, Any]:
    return {
        "table": str(table.name),
        "rows": rows.count,
        "ranges": [list(one) for one in rows.offsets.ranges],
        "snapshots": [asdict(snapshot) for snapshot in rows.snapshots],
        "delete_files": rows.delete_files,
        "rewritten_files": rows.rewritten_files,
    }
