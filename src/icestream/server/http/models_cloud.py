"""What travels in bodies and queries about topics in the cloud."""

from pydantic import Field

from icestream.server.cloud_requests import MAX_OBJECTS, MAX_WAIT_SECONDS
from icestream.server.http.models import Model, QueryInt

MAX_FLUSH_WAIT_MS = int(MAX_WAIT_SECONDS * 1000)


class Flush(Model):
    wait_ms: int = Field(
        default=MAX_FLUSH_WAIT_MS, ge=0, le=MAX_FLUSH_WAIT_MS, description="How long to wait for the upload."
    )
    target: int | None = Field(
        default=None, ge=0, description="`target` of an earlier answer, to go on waiting for the same messages."
    )


class Recover(Model):
    """Nothing is to be said yet: an empty object."""


class ObjectsQuery(Model):
    after: QueryInt = Field(default=-1, ge=-1, description="`next_after` of the last page.")
    limit: QueryInt = Field(default=100, ge=1, le=MAX_OBJECTS, description="Most objects in the answer.")


class Flushed(Model):
    topic: str
    target: int = Field(description="Messages below it were durable when the first request came.")
    uploaded_offset: int = Field(description="Messages below it are in the cloud.")
    done: bool = Field(description="Whether all below the target are. If not, ask again with this `target`.")


class CloudHead(Model):
    stream_id: str
    epoch: int = Field(description="Of the owner that wrote last.")
    first_offset: int = Field(description="First offset that the objects have.")
    uploaded_end: int = Field(description="Messages below it are in the cloud.")
    file_seq: int
    byte_pos: int = Field(description="With `file_seq`: where in the log the next object begins.")
    reserved_end: int = Field(description="No message has an offset from here on yet.")
    object_count: int
    object_bytes: int
    updated_us: int = Field(description="Microseconds since 1970 UTC.")


class CloudObject(Model):
    key: str
    stream_id: str
    epoch: int
    first_offset: int
    end_offset: int = Field(description="The offset after the last one.")
    first_time_us: int
    last_time_us: int
    frame_count: int
    data_bytes: int = Field(description="Of the frames; the trailer follows.")
    size: int
    checksum: str = Field(description="XXH3-64 of the frames, in hexadecimal.")
    parts: int = Field(description="Runs of frames that came from one segment each.")
    file_seq: int
    byte_pos: int
    created_us: int


class CloudObjects(Model):
    topic: str
    store: str = Field(description="Where the objects lie.")
    head: CloudHead | None
    objects: list[CloudObject]
    next_after: int | None = Field(description="`after` of the next page; null on the last one.")


class Recovery(Model):
    """What a recovery brought back, and what it could not."""

    topic: str
    stream_id: str
    epoch: int = Field(description="The new one.")
    start_offset: int
    next_offset: int = Field(description="The offset that the next message gets.")
    cloud_first_offset: int | None = Field(description="First offset that the cloud has.")
    cloud_end: int = Field(description="Messages below it are in the cloud.")
    committed_offset: int | None = Field(description="Messages below it are in the table.")
    lost_first: int | None = Field(description="First offset that may have been used and is nowhere any more.")
    lost_end: int | None
    objects: int
    bytes: int
    unreadable: list[tuple[int, int]] = Field(
        description="Offsets, each time with the one behind them, whose objects are gone or damaged; no table has them."
    )
    sources: list[str] = Field(description="What was found where, and what was not as it should be.")
    message: str = Field(description="What is lost, in a sentence.")


class Recoverable(Model):
    lost: list[str] = Field(description="Topics whose log is gone from this broker's disk.")
    recoverable: list[str] = Field(description="Topics that the object store has, and this broker does not know.")
