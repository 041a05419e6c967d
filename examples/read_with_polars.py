"""Reads a topic's table with Polars: `python examples/read_with_polars.py DATA_DIR TOPIC`."""

import sys
from pathlib import Path

import polars as pl
from pyiceberg.catalog import load_catalog


def main(data_dir: Path, topic: str) -> None:
    namespace, name = topic.split("/")
    catalog = load_catalog("icestream", type="sql", uri=f"sqlite:///{data_dir.absolute()}/catalog.db")
    messages = pl.scan_iceberg(catalog.load_table((namespace, name)))

    # Topics with columns of their own, such as telemetry, have `_offset` where the others have `offset`.
    is_own = "_offset" in messages.collect_schema()
    shown = ("_offset", "_publish_time", "_producer") if is_own else ("offset", "publish_time", "payload")
    offset = shown[0]
    producer = "_producer" if is_own else "producer"

    print(messages.select(shown).sort(offset).head(3).collect())
    by_producer = messages.group_by(producer).agg(pl.len().alias("messages"), pl.col(offset).max().alias("last"))
    print(by_producer.collect())
    print(f"{messages.select(pl.len()).collect().item()} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
