"""Frames in quarantine as the commands need them: found in the tables of a topic, and opened if they can be."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from icestream.client import Client
from icestream.config import SettingsError, load_settings
from icestream.model.errors import IcestreamError, InvalidMessageError, InvalidRequestError, TopicNotFoundError
from icestream.model.formats import copied
from icestream.model.frames import MESSAGES_SCHEMA_ID, Frame
from icestream.model.messages import MESSAGE_SCHEMA, check_batch, decode_body
from icestream.model.names import TopicName
from icestream.model.quarantine import Quarantined, frame_file
from icestream.model.schema_text import decode_schema
from icestream.storage.verify.tables import FindTable, find_all, open_tables
from icestream.table import Tables, TopicTable
from icestream.table.quarantine import (
    About,
    note_retried,
    quarantining_topics,
    read_about,
    read_frame,
    read_retried,
)


@dataclass(frozen=True)
class Aside:
    """One frame in quarantine, of one table."""

    topic: TopicName
    table: TopicTable
    entry: Quarantined

    @cached_property
    def frame(self) -> Frame:
        return read_frame(self.table, self.entry)

    @cached_property
    def about(self) -> About:
        return read_about(self.table, self.entry)

    @cached_property
    def retried(self) -> dict[str, Any] | None:
        return read_retried(self.table, self.entry)

    def content(self) -> bytes:
        """The frame as it is kept."""
        return frame_file(self.frame, self.about.stream_id)

    def messages(self) -> pa.RecordBatch:
        """What was published, from the first offset that is in quarantine; raises unless every value is sound."""
        frame = self.frame
        if frame.schema_id == MESSAGES_SCHEMA_ID:
            schema = MESSAGE_SCHEMA
        elif self.about.schema is not None:
            schema = decode_schema(self.about.schema)
        else:
            raise InvalidMessageError(
                f"the columns of the frame's schema {frame.schema_id} are not known", operation="decode"
            )
        batch = decode_body(frame, schema)
        check_batch(batch, schema)
        return batch.slice(self.entry.first_offset - frame.base_offset)

    def refusal(self) -> IcestreamError | None:
        """Why the messages cannot be had, if they cannot."""
        try:
            self.messages()
        except IcestreamError as error:
            return error
        return None

    def to_json(self) -> dict[str, Any]:
        return {"topic": str(self.topic), **self.entry.to_json(), "retried": self.retried}


@contextlib.contextmanager
def open_catalog(config_file: Path | None, data: Path | None) -> Iterator[FindTable]:
    try:
        settings = load_settings(config_file, {"data_dir": data})
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    with open_tables(settings) as tables:
        yield tables


def find(tables: FindTable, topic: str | None) -> list[Aside]:
    """All that is in quarantine, of a topic or of all."""
    if not isinstance(tables, Tables):
        raise InvalidRequestError(
            "there is no catalog here", operation="quarantine", remedy="give the broker's own --data or --config"
        )
    if topic is not None:
        names = [TopicName.parse(topic)]
    else:
        names = sorted({copied(name) for name in quarantining_topics(tables)})
    found = []
    for name in names:
        own = find_all(name, tables)
        if topic is not None and not own:
            raise TopicNotFoundError("the catalog has no table of it", operation="quarantine", place=str(name))
        found += [Aside(name, table, entry) for table in own for entry in table.quarantined]
    return found


def find_one(tables: FindTable, topic: str, offset: int) -> Aside:
    for one in find(tables, topic):
        if one.entry.first_offset <= offset < one.entry.end_offset:
            return one
    raise InvalidRequestError(
        f"offset {offset} is not in quarantine",
        operation="quarantine",
        place=topic,
        remedy="`icestream quarantine list` says what is",
    )


def publish_again(aside: Aside, client: Client) -> dict[str, int | None]:
    """Publish the messages as new ones, once, and note that: where they are now, as far as that is known.

    They are published by a producer of their own, whose first messages they are. So if that was done before and could
    not be noted, the broker remembers how many it has, and only those behind them are published. The offsets told are
    those of the messages that were published now; `before` counts the others.
    """
    if aside.retried is not None:
        raise InvalidRequestError(
            "it was published again already", operation="retry", place=str(aside.topic), details=aside.retried
        )
    batch = aside.messages()
    name = f"quarantine-{aside.entry.first_offset}-{aside.about.stream_id}"
    with client.producer(aside.topic, name=name, exclusive=False) as producer:
        before = min(producer.next_sequence, batch.num_rows)
        rest = batch.slice(before)
        sent = producer.send_batch(_widened(rest, client, aside.topic)).ranges if rest.num_rows else []
    told = {
        "first_offset": sent[0][0] if sent else None,
        "end_offset": sum(sent[-1]) if sent else None,
        "before": before,
    }
    note_retried(aside.table, aside.entry, told)
    return told


def _widened(batch: pa.RecordBatch, client: Client, topic: TopicName) -> pa.RecordBatch:
    """With the columns that the topic has gained since."""
    schema = client.describe_topic(topic).schema or MESSAGE_SCHEMA
    missing = [field for field in schema if field.name not in batch.schema.names]
    columns = [*batch.columns, *(pa.nulls(batch.num_rows, field.type) for field in missing)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*batch.schema, *missing]))
