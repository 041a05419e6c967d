"""Where the files of a Parquet copy lie, and what they are called.

Date and hour of a folder are those of the publish time, in UTC. A glob over the folders with hive partitioning gives
all rows, with date and hour as columns. A file's name begins with the id of the Iceberg table that describes it, which
tells it from other files in the folder: those of another program, or of a copy that was dropped and kept.

On a local disk a file is written under a hidden name, and renamed when it is complete.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from uuid import UUID, uuid4

import structlog

from icestream.config import Settings, is_within
from icestream.model.errors import InvalidRequestError
from icestream.model.names import TopicName, topic_of_table
from icestream.table.catalogs import warehouse_location

LAYOUT = "icestream.layout"
"""The property of a table whose data files are not laid out in Iceberg's own way."""
HIVE = "hive"
DATA_PATH = "write.data.path"
"""Iceberg's property for the location of data files."""
_HOUR_SECONDS = 3600
_DAY_HOURS = 24

_log = structlog.get_logger(__name__)


def is_copy_layout(properties: Mapping[str, str]) -> bool:
    """Return whether a table with these properties is a Parquet copy."""
    return properties.get(LAYOUT) == HIVE


def data_path(properties: Mapping[str, str]) -> str:
    """Return the folder of a copy's files."""
    return properties[DATA_PATH]


def parquet_location(settings: Settings) -> str:
    """Return the URI of the folder of all copies. A path becomes absolute, so every process means the same one."""
    given = settings.storage.parquet_path or _default_location(settings)
    if given is None:
        raise InvalidRequestError(
            "there is no location for the Parquet copy: the catalog does not tell its warehouse",
            operation="open table",
            remedy="set storage.parquet_path",
        )
    return given.rstrip("/") if "://" in given else f"file://{Path(given).absolute()}"


def _default_location(settings: Settings) -> str | None:
    """Return a folder next to the warehouse."""
    warehouse = warehouse_location(settings)
    if warehouse is None or "://" not in warehouse:
        return None
    scheme, _, path = warehouse.partition("://")
    folder = PurePosixPath(path)
    if len(folder.parts) > 1:
        name = "parquet" if folder.name != "parquet" else "-parquet"  # the warehouse itself may be called parquet
        return f"{scheme}://{folder.parent}/{name}"
    return f"{scheme}://{folder}/-parquet"  # inside the bucket; no namespace can have this name


def copy_properties(settings: Settings, table: TopicName) -> dict[str, str]:
    """Return the properties that only a Parquet copy has."""
    topic = topic_of_table(table)
    return {LAYOUT: HIVE, DATA_PATH: f"{parquet_location(settings)}/{topic.namespace}/{topic.name}"}


def check_locations(table: TopicName, folder: str, location: str) -> None:
    """Raise if the folders of a copy and of the topic's own table overlap: cleaning one would remove the other."""
    if is_within(folder, location) or is_within(location, folder):
        raise InvalidRequestError(
            f"the folder of plain files {folder} and the folder of the table {location} overlap: the clean-up of "
            "the table would remove the plain files",
            operation="open table",
            place=str(table),
            remedy="set storage.parquet_path to a folder outside the catalog's warehouse",
        )


def warn_if_moved(settings: Settings, table: TopicName, folder: str) -> None:
    """Log if the settings name another folder by now: a copy stays where it began."""
    if settings.storage.parquet_path is not None:
        wanted = copy_properties(settings, table)[DATA_PATH]
        if wanted != folder:
            _log.warning(
                "parquet_folder_setting_ignored",
                table=str(table),
                folder=folder,
                configured=wanted,
            )


def copy_partition(publish_time: str) -> tuple[str, ...]:
    """Return the partitioning of a copy: one partition per hour of the publish time's column."""
    return (f"hour({publish_time})",)


def new_file_path(hour: int, table: UUID) -> str:
    """Return the path of a new file below the copy's folder. The hour counts from 1970, as in partitions."""
    return f"{hour_folder(hour)}/{table.hex}-{uuid4().hex}.parquet"


def hour_folder(hour: int) -> str:
    """Return the folder of an hour."""
    moment = datetime.fromtimestamp(hour * _HOUR_SECONDS, UTC)
    return f"date={moment:%Y-%m-%d}/hour={moment:%H}"


def first_hour_of_folder(folder: str) -> int | None:
    """Return the first hour of a date's folder; None if it is another folder."""
    try:
        day = datetime.strptime(folder, "date=%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(day.timestamp()) // _HOUR_SECONDS


def first_hour_of_day(hour: int) -> int:
    """Return the first hour of the day of an hour."""
    return hour // _DAY_HOURS * _DAY_HOURS


def own_file_pattern(table: UUID) -> re.Pattern[str]:
    """Return a pattern for the names of a table's files, complete or being written."""
    return re.compile(rf"{table.hex}-[0-9a-f]{{32}}\.parquet|\.{table.hex}-[0-9a-f]{{32}}\.parquet\.part")
