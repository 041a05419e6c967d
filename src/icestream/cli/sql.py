"""`icestream sql`: a SELECT over topics."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from icestream.cli.options import broker_option, catalog_options, fresh_option, json_option
from icestream.cli.output import console, plural, printable, table
from icestream.client import BrokerEndpoint, Client
from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.model.json_rows import json_rows

_MAX_CELL = 500
_PLAN = ["explain_key", "explain_value"]


@click.command(
    name="sql", epilog='Example: icestream sql "SELECT key, count(*) FROM default.events GROUP BY key ORDER BY 2 DESC"'
)
@click.argument("query")
@fresh_option
@click.option(
    "--max-rows",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Print at most N rows. --json prints all.",
)
@json_option
@broker_option
@catalog_options
def command(
    query: str,
    fresh: bool,
    max_rows: int,
    as_json: bool,
    broker: BrokerEndpoint,
    catalog: str | None,
    config_file: Path | None,
    data: Path | None,
) -> None:
    """Query topics with SQL.

    A topic is a table namespace.name. Put names with a dot or a dash in double quotes. The SQL is DuckDB's. With --json
    each row is one JSON object a line, printed as it comes, without a limit. QUERY - is read from stdin.
    """
    text = sys.stdin.read() if query == "-" else query
    with _printable_errors():
        if catalog is not None:
            batches = _from_catalog(text, catalog, config_file, data)
            _print(batches, as_json=as_json, max_rows=max_rows)
            return
        with Client(broker) as client:
            _print(client.sql_batches(text, fresh=fresh), as_json=as_json, max_rows=max_rows)


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Escape control characters: an error may quote a value, as in `could not convert string '…'`."""
    try:
        yield
    except IcestreamError as error:
        if str(error).isprintable():
            raise
        raise click.ClickException(printable(str(error))) from error


def _from_catalog(query: str, catalog: str, config_file: Path | None, data: Path | None) -> Iterator[pa.RecordBatch]:
    # Imported here: the light client has no storage and no query engine.
    from icestream.cli.settings import catalog_settings  # noqa: PLC0415
    from icestream.query import CatalogTopics, QueryEngine  # noqa: PLC0415
    from icestream.storage import ReadOnlyStorage  # noqa: PLC0415

    settings = catalog_settings(catalog, config_file, data)
    with (
        ReadOnlyStorage(settings) as storage,
        QueryEngine(settings.query, CatalogTopics(storage)).run(query) as running,
    ):
        yield pa.RecordBatch.from_pylist([], running.schema)
        yield from running.batches()


def _print(batches: Iterator[pa.RecordBatch], *, as_json: bool, max_rows: int) -> None:
    schema = next(batches).schema
    if len(set(schema.names)) < len(schema.names):
        raise InvalidRequestError(
            "two columns of the result have the same name", operation="sql", remedy="rename one: SELECT a.key AS a_key"
        )
    if as_json:
        for batch in batches:
            sys.stdout.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in json_rows(batch)))
        sys.stdout.flush()
        return
    numbers = (field.name for field in schema if pa.types.is_integer(field.type) or _is_fraction(field.type))
    made = table(*map(printable, schema.names), numbers=tuple(map(printable, numbers)))
    shown = _shown_lines if schema.names == _PLAN else printable
    rows = (row for batch in batches for row in json_rows(batch))
    count = 0
    for row in islice(rows, max_rows):
        made.add_row(*(shown(_cell(row, name)) for name in schema.names))
        count += 1
    is_cut = count == max_rows and next(rows, None) is not None
    console().print(made)
    rest = f"the first {plural(count, 'row')}; --max-rows or --json print more" if is_cut else plural(count, "row")
    click.echo(rest, err=True)


def _is_fraction(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _shown_lines(text: str) -> str:
    """Keep the lines of a query plan, which is a drawing."""
    return "\n".join(map(printable, text.split("\n")))


def _cell(row: dict[str, Any], name: str) -> str:
    value = row.get(name, row.get(f"{name}_base64"))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_CELL else text[:_MAX_CELL] + "…"
