"""The properties of a new table.

Iceberg's own properties make every engine keep the layout: codec, file size, few statistics, few old metadata files.
Readers plan by the statistics. The envelope has full bounds, payloads have none, and bounds of other columns are
truncated, so that manifests do not repeat messages. Bloom filters are for the columns that the settings name.
"""

import pyarrow.types as kinds

from icestream.config import TableSettings
from icestream.model.messages import encode_schema
from icestream.table.bloom import OWN_COLUMNS
from icestream.table.ledger import Ledger
from icestream.table.schema import Columns

STREAM_SCHEMA = "icestream.stream-schema"
"""The topic's stream schema: an Arrow IPC schema message in base 64."""
SORT_BY = "icestream.sort-by"
"""The columns that row groups are sorted by, one a line."""

FORMAT_VERSION = "2"
_BOUND_LENGTH = 64
_METRICS = "write.metadata.metrics.column."

_MIN_GROUP_BYTES = 1024 * 1024
_LEVELS = {"zstd": 22, "gzip": 9}


def new_table_properties(
    settings: TableSettings, columns: Columns, ledger: Ledger, sort_by: tuple[str, ...]
) -> dict[str, str]:
    properties = {
        "format-version": FORMAT_VERSION,
        "write.format.default": "parquet",
        "write.parquet.compression-codec": "uncompressed" if settings.compression == "none" else settings.compression,
        "write.target-file-size-bytes": str(settings.target_file_bytes),
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": str(settings.metadata_versions),
        # For commits of other engines, such as compaction. Ours are quick and many, and do not retry.
        "commit.retry.num-retries": "20",
        "commit.retry.min-wait-ms": "50",
        "write.metadata.metrics.default": f"truncate({_BOUND_LENGTH})",
        STREAM_SCHEMA: encode_schema(columns.stream),
        **ledger.to_properties(),
    }
    if settings.compression in _LEVELS:
        level = min(settings.compression_level, _LEVELS[settings.compression])
        properties["write.parquet.compression-level"] = str(level)
    filtered = [field.name for field in columns.fields() if field.name in settings.filtered_columns]
    if filtered:
        properties[OWN_COLUMNS] = "\n".join(filtered)
    if sort_by:
        properties[SORT_BY] = "\n".join(sort_by)
    if sort_by or filtered:
        # For compaction, which counts bytes on disk. Readers hold or skip a row group as a whole.
        properties["write.parquet.row-group-size-bytes"] = str(max(_MIN_GROUP_BYTES, settings.row_group_bytes // 4))
    for field in columns.fields():
        if field.name in columns.envelope:
            properties[_METRICS + field.name] = "full"
        elif field.name == "payload" and kinds.is_binary(field.type):
            properties[_METRICS + field.name] = "none"
    return properties
