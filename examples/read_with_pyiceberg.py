"""Reads a topic's table with PyIceberg: `python examples/read_with_pyiceberg.py DATA_DIR TOPIC`."""

import sys
from pathlib import Path

from pyiceberg.catalog import load_catalog


def main(data_dir: Path, topic: str) -> None:
    namespace, name = topic.split("/")
    catalog = load_catalog("icestream", type="sql", uri=f"sqlite:///{data_dir.absolute()}/catalog.db")
    table = catalog.load_table((namespace, name))

    # Topics with columns of their own, such as telemetry, have `_offset` where the others have `offset`.
    is_own = "_offset" in table.schema().column_names
    shown = ("_offset", "_publish_time", "_producer") if is_own else ("offset", "publish_time", "payload")
    offset = shown[0]

    rows = table.scan(row_filter=f"{offset} >= 0", selected_fields=shown).to_arrow()
    print(rows.sort_by(offset).slice(0, 3))

    committed = table.properties["icestream.committed-offset"]
    print(f"{rows.num_rows} rows in {len(table.snapshots())} snapshots; all messages below offset {committed}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
