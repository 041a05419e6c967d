"""The folders of a Parquet copy: plain files by date and hour, as engines without a catalog read them.

    {storage.parquet_path}/{namespace}/{topic}/date=2026-11-30/hour=09/{table}-{file}.parquet

Date and hour are those of the publish time, in UTC. A glob over the folders with hive partitioning gives all rows, and
date and hour as columns. The names of a copy's files begin with the id of the Iceberg table that describes them: files
that somebody else has put there, or a copy that was dropped and kept, are told from them and never touched.

A file has its name when it is complete: on a local disk it is written under a hidden one first.
"""

import re
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from uuid import UUID, uuid4

import structlog

from icestream.config import Settings
from icestream.config.locations import is_within
from icestream.model.errors import InvalidRequestError
from icestream.model.messages import ENVELOPE
from icestream.model.names import TopicName, copied
from icestream.table.catalogs import warehouse_location

LAYOUT = "icestream.layout"
"""A property of tables: how their data files are laid out, where it is not Iceberg's own way."""
HIVE = "hive"
DATA_PATH = "write.data.path"
"""Iceberg's property: where data files are put."""
_HOUR_SECONDS = 3600
_DAY_HOURS = 24
_HOUR_UNIT = "hour"
_log = structlog.get_logger(__name__)


def parquet_location(settings: Settings) -> str:
    """Where plain files go, as a URI; a path becomes absolute, so that it means the same in every process."""
    given = settings.storage.parquet_path or _beside_warehouse(settings)
    if given is None:
        raise InvalidRequestError(
            "there is no place for plain Parquet files: the catalog keeps its warehouse to itself",
            operation="open table",
            remedy="set storage.parquet_path",
        )
    return given.rstrip("/") if "://" in given else f"file://{Path(given).absolute()}"


def _beside_warehouse(settings: Settings) -> str | None:
    warehouse = warehouse_location(settings)
    if warehouse is None or "://" not in warehouse:
        return None
    scheme, _, path = warehouse.partition("://")
    folder = PurePosixPath(path)
    if len(folder.parts) > 1:
        name = "parquet" if folder.name != "parquet" else "-parquet"  # the warehouse itself may have that name
        return f"{scheme}://{folder.parent}/{name}"
    return f"{scheme}://{folder}/-parquet"  # a bucket has nothing beside it; no namespace can have this name


def hive_properties(settings: Settings, table: TopicName) -> dict[str, str]:
    """What a Parquet copy has besides the properties of any table."""
    topic = copied(table)
    return {LAYOUT: HIVE, DATA_PATH: f"{parquet_location(settings)}/{topic.namespace}/{topic.name}"}


def check_apart(table: TopicName, data_path: str, location: str) -> None:
    """Refuse folders of a copy that the clean-up of the topic's own table looks into, or that hold that table."""
    if is_within(data_path, location) or is_within(location, data_path):
        raise InvalidRequestError(
            f"the plain files' folder {data_path} and the table's, {location}, lie one in the other: the clean-up of "
            "the table would take the plain files for its own",
            operation="open table",
            place=str(table),
            remedy="set storage.parquet_path to a place outside of the catalog's warehouse",
        )


def note_other_place(settings: Settings, table: TopicName, data_path: str) -> None:
    """A copy stays where it began, whatever the settings say by now."""
    if settings.storage.parquet_path is not None:
        wanted = hive_properties(settings, table)[DATA_PATH]
        if wanted != data_path:
            _log.warning(
                "plain files of a topic go on where they began, not where storage.parquet_path says",
                table=str(table),
                folder=data_path,
                setting=wanted,
            )


def hive_partition(columns: list[str]) -> tuple[str, ...]:
    """The partitions of a copy: one an hour of the publish time, whose column is the envelope's second."""
    assert columns[1].endswith(ENVELOPE[1].name)
    return (f"{_HOUR_UNIT}({columns[1]})",)


def hive_folder(hour: int) -> str:
    """The folder of an hour, which is counted from 1970 as partitions are."""
    moment = datetime.fromtimestamp(hour * _HOUR_SECONDS, UTC)
    return f"date={moment:%Y-%m-%d}/hour={moment:%H}"


def date_of(folder: str) -> int | None:
    """The first hour of a date's folder; None if it is not one."""
    try:
        day = datetime.strptime(folder, "date=%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(day.timestamp()) // _HOUR_SECONDS


def day_of(hour: int) -> int:
    """The first hour of the day of an hour."""
    return hour // _DAY_HOURS * _DAY_HOURS


def new_file_name(table: UUID) -> str:
    return f"{table.hex}-{uuid4().hex}.parquet"


def own_file(table: UUID) -> re.Pattern[str]:
    """The names of a table's files, and of those that are being written."""
    return re.compile(rf"{table.hex}-[0-9a-f]{{32}}\.parquet|\.{table.hex}-[0-9a-f]{{32}}\.parquet\.part")
