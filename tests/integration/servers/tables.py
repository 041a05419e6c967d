"""A table on any catalog, with PyIceberg alone."""

from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog

ROWS = pa.table({"offset": pa.array(range(100), pa.int64()), "payload": [b"x"] * 100})


def s3_properties(object_store: dict[str, Any]) -> dict[str, str]:
    """PyIceberg's properties for what `S3Server.settings` says."""
    return {
        "s3.endpoint": object_store["endpoint"],
        "s3.region": object_store["region"],
        "s3.access-key-id": object_store["access_key"],
        "s3.secret-access-key": object_store["secret_key"],
    }


def round_trip(catalog: Catalog, namespace: str) -> None:
    """Create a table, append to it twice and read it back from the catalog's own word."""
    catalog.create_namespace(namespace)
    table = catalog.create_table(f"{namespace}.events", ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    loaded = catalog.load_table(f"{namespace}.events")
    assert len(loaded.snapshots()) == 2
    assert loaded.scan().to_arrow().num_rows == 2 * ROWS.num_rows
