"""Reads a topic's table with DuckDB: `python examples/read_with_duckdb.py DATA_DIR TOPIC`.

DuckDB's Iceberg extension reads a table from its newest metadata file, which is in the catalog. The extension comes
from the package `duckdb-extension-iceberg`; `INSTALL iceberg` fetches it from DuckDB's own server instead.
"""

import sys
from pathlib import Path

import duckdb
from duckdb_extensions import import_extension  # type: ignore[import-untyped]
from pyiceberg.catalog import load_catalog


def main(data_dir: Path, topic: str) -> None:
    namespace, name = topic.split("/")
    catalog = load_catalog("icestream", type="sql", uri=f"sqlite:///{data_dir.absolute()}/catalog.db")
    metadata = catalog.load_table((namespace, name)).metadata_location

    with duckdb.connect() as database:
        for extension in ("avro", "iceberg"):
            import_extension(extension, con=database)
            database.load_extension(extension)
        database.execute(f"CREATE VIEW messages AS FROM iceberg_scan('{metadata}')")
        messages = database.table("messages")
        # Topics with columns of their own, such as telemetry, have `_offset` where the others have `offset`.
        is_own = "_offset" in messages.columns
        shown = ("_offset", "_publish_time", "_producer") if is_own else ("offset", "publish_time", "payload")
        offset = shown[0]
        messages.order(f'"{offset}"').limit(3).select(*shown).show()
        count, first, last = messages.aggregate(f'count(*), min("{offset}"), max("{offset}")').fetchall()[0]
        print(f"{count} rows, offsets {first} to {last}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
