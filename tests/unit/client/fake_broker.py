"""A small broker that keeps docs/protocol.md in memory, and misbehaves as told.

`faults` is a script: the fault for each batch as it arrives, `None` for none.

- `retry`: answer that the log is not available, store nothing
- `fatal`: answer that the message is invalid, to this copy of the batch and to all others
- `gap`: forget the producer's numbering, and answer so to all that it sends under this name from now on
- `drop`: end the stream, store nothing
- `lost_ack`: store, then end the stream without an answer
- `linger`: end the stream; the batch turns up in the log later, after two others, if its sequence fits then
"""

import base64
import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
from tests.unit.client.proxy import Proxy

from icestream.model.errors import (
    IcestreamError,
    InvalidMessageError,
    LogUnavailableError,
    OffsetOutOfRangeError,
    SequenceError,
    TooLargeError,
    TopicExistsError,
    TopicNotFoundError,
)
from icestream.model.frames import Frame
from icestream.model.lone_message import decode_singles
from icestream.model.messages import (
    MESSAGE_SCHEMA,
    Encoding,
    check_and_encode,
    check_batch,
    check_message_sizes,
    stream_batches,
    stream_schema,
)
from icestream.protocol.publish import split_lone_message

REMEMBERED_BATCHES = 16
FIRST_TIME_US = 1_700_000_000_000_000


def _opened(chunk: Any) -> tuple[dict[str, Any], pa.RecordBatch]:
    """A request, and what it publishes: a batch, or the message that is in the request."""
    metadata = chunk.app_metadata.to_pybytes()
    if chunk.data is not None:
        return json.loads(metadata), chunk.data
    request, body = split_lone_message(metadata)
    return json.loads(bytes(request)), decode_singles([body], MESSAGE_SCHEMA)


@dataclass
class Topic:
    name: str
    schema: pa.Schema
    ack: str = "disk"
    frames: list[Frame] = field(default_factory=list)
    sent: dict[str, deque[tuple[int, int, int]]] = field(default_factory=dict)
    end: int = 0

    def store(self, producer: str, sequence: int, batch: pa.RecordBatch) -> tuple[int, bool]:
        """Base offset, and whether it was there before. A producer that is not known may begin anywhere."""
        sent = self.sent.setdefault(producer, deque(maxlen=REMEMBERED_BATCHES))
        for earlier, count, base in sent:
            if (earlier, count) == (sequence, batch.num_rows):
                return base, True
        expected = sent[-1][0] + sent[-1][1] if sent else sequence
        if sequence != expected:
            raise SequenceError(
                f"expected {expected}, got {sequence}", details={"expected": expected, "sequence": sequence}
            )
        encoding, body = check_and_encode(batch, batch.schema)
        base, self.end = self.end, self.end + batch.num_rows
        time_us = FIRST_TIME_US + base
        self.frames.append(
            Frame(base, batch.num_rows, time_us, 0, producer, sequence, Encoding(encoding), 0, bytes(body))
        )
        sent.append((sequence, batch.num_rows, base))
        return base, False

    def description(self) -> dict[str, Any]:
        return {
            "topic": self.name,
            "stream_id": "00000000-0000-0000-0000-000000000000",
            "epoch": 0,
            "ack": self.ack,
            "created_us": FIRST_TIME_US,
            "retention_minutes": None,
            "retention_mb": None,
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "start_offset": 0,
            "durable_end": self.end,
        }


class FakeBroker(fl.FlightServerBase):  # type: ignore[misc]
    def __init__(self, port: int = 0, topics: dict[str, Topic] | None = None) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._proxy = Proxy(port, self.port)
        self.public_port = self._proxy.port
        self.url = f"grpc://127.0.0.1:{self.public_port}"
        self.topics = topics if topics is not None else {}
        self.faults: deque[str | None] = deque()
        self.seen: list[dict[str, Any]] = []
        self.puts = 0
        self.gets: list[dict[str, Any]] = []
        self.answering = threading.Event()
        self.answering.set()
        self.max_message_bytes = 16 * 1024 * 1024
        self.max_batch_bytes = 64 * 1024 * 1024
        self.max_gets_batches: int | None = None
        self._lingering: list[tuple[int, dict[str, Any], pa.RecordBatch]] = []
        self._bad: set[Any] = set()
        self._muddled: set[str] = set()
        self._changed = threading.Condition()
        self._stopping = False

    def payloads(self, topic: str = "default/t") -> list[bytes]:
        found = self.topics[topic]
        frames = stream_batches(found.frames, {0: found.schema})
        return [value for batch in frames for value in batch.column("payload").to_pylist()]

    def stop(self) -> None:
        """Die: connections break. (A Flight server alone would wait for its clients to end their streams.)"""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.answering.set()
        self._proxy.cut()
        self.shutdown()

    # ---- publishing

    def do_put(self, _context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        self.puts += 1
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            metadata, batch = _opened(chunk)
            with self._changed:
                self.seen.append(metadata)
                fault = self.faults.popleft() if self.faults else None
                answer = self._handle(metadata, batch, fault)
                self._settle_lingering()
                self._changed.notify_all()
            if fault in {"drop", "lost_ack", "linger"}:
                raise fl.FlightUnavailableError("the connection broke")
            self.answering.wait()
            if self._stopping:
                raise fl.FlightUnavailableError("stopped")
            writer.write(json.dumps({"id": metadata["id"], **answer}).encode())

    def _handle(self, metadata: dict[str, Any], batch: pa.RecordBatch, fault: str | None) -> dict[str, Any]:
        error: IcestreamError
        name, sequence = metadata["producer"], metadata["sequence"]
        if self._has(metadata, batch):
            fault = fault if fault in {"drop", "linger"} else None
        if fault == "fatal":
            self._bad.add(batch.column("payload")[0].as_py())
        if fault == "gap":
            self._muddled.add(name)
        if fault == "retry":
            error = LogUnavailableError("try again")
        elif fault == "drop":
            return {}
        elif fault == "linger":
            self._lingering.append((len(self.seen) + 2, metadata, batch))
            return {}
        elif batch.column(batch.num_columns - 1)[0].as_py() in self._bad:
            error = InvalidMessageError("never")
        elif name in self._muddled and not self._has(metadata, batch):
            error = SequenceError("a hole", details={"expected": -1, "sequence": sequence})
        else:
            try:
                return self._store(metadata, batch)
            except IcestreamError as found:
                error = found
        return {"error": error.to_dict()}

    def _has(self, metadata: dict[str, Any], batch: pa.RecordBatch) -> bool:
        topic = self.topics.get(metadata["topic"])
        known = topic.sent.get(metadata["producer"], ()) if topic is not None else ()
        return any((earlier, count) == (metadata["sequence"], batch.num_rows) for earlier, count, _ in known)

    def _store(self, metadata: dict[str, Any], batch: pa.RecordBatch) -> dict[str, Any]:
        topic = self.topics.get(metadata["topic"])
        if topic is None:
            raise TopicNotFoundError(metadata["topic"])
        check_batch(batch, topic.schema)
        if batch.serialize().size > self.max_batch_bytes:
            raise TooLargeError("a batch beyond the limit")
        check_message_sizes(batch, self.max_message_bytes)
        base, duplicate = topic.store(metadata["producer"], metadata["sequence"], batch)
        answer = {"base_offset": base, "count": batch.num_rows, "publish_time_us": FIRST_TIME_US + base}
        return {**answer, "duplicate": True} if duplicate else answer

    def _settle_lingering(self) -> None:
        due = [entry for entry in self._lingering if entry[0] <= len(self.seen)]
        self._lingering = [entry for entry in self._lingering if entry[0] > len(self.seen)]
        for _, metadata, batch in due:
            self._handle(metadata, batch, None)

    # ---- reading

    def do_get(self, _context: Any, ticket: Any) -> Any:
        fields = json.loads(ticket.ticket)
        self.gets.append(fields)
        topic = self.topics.get(fields["topic"])
        if topic is None:
            raise flight_error(TopicNotFoundError(f"no topic {fields['topic']}"))
        start = fields.get("start", "earliest")
        first = {"earliest": 0, "latest": topic.end}.get(start) if isinstance(start, str) else start
        if isinstance(first, dict):
            first = max(0, first["time_us"] - FIRST_TIME_US)
        if first is None or first > topic.end:
            raise flight_error(OffsetOutOfRangeError("beyond the end", details={"start": 0, "end": topic.end}))
        end = fields.get("end", None if fields.get("follow") else topic.end)
        rows = self._rows(topic, first, end, fields.get("max_messages"))
        return fl.GeneratorStream(stream_schema(topic.schema), rows)

    def _rows(self, topic: Topic, start: int, end: int | None, limit: int | None) -> Iterator[pa.RecordBatch]:
        given = batches = 0
        while (end is None or start < end) and (limit is None or given < limit):
            with self._changed:
                self._changed.wait_for(partial(self._has_more, topic, start))
                frames = [frame for frame in topic.frames if frame.end_offset > start]
            if self._stopping or batches == self.max_gets_batches:
                self.max_gets_batches = None
                raise fl.FlightUnavailableError("the connection broke")
            # The first frame may begin before the start, as with a broker that sends whole frames after a restart.
            batch = next(stream_batches(frames[:1], {0: topic.schema}))
            skip = start - frames[0].base_offset
            batch = batch.slice(skip, None if end is None else end - start)
            if limit is not None:
                batch = batch.slice(0, limit - given)
            yield batch
            batches += 1
            given += batch.num_rows
            start += batch.num_rows

    def _has_more(self, topic: Topic, start: int) -> bool:
        return topic.end > start or self._stopping

    # ---- administration

    def do_action(self, _context: Any, action: Any) -> list[bytes]:
        fields = json.loads(action.body.to_pybytes() or b"{}")
        try:
            answer = getattr(self, f"_{action.type}")(fields)
        except IcestreamError as error:
            raise flight_error(error) from error
        return [json.dumps(answer).encode()]

    def _create_topic(self, fields: dict[str, Any]) -> dict[str, Any]:
        name = fields["topic"]
        if name in self.topics and not fields.get("if_not_exists"):
            raise TopicExistsError(f"topic {name} exists")
        schema = fields.get("schema")
        self.topics.setdefault(
            name,
            Topic(
                name,
                MESSAGE_SCHEMA if schema is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema))),
                fields.get("ack", "disk"),
            ),
        )
        return self.topics[name].description()

    def _find(self, fields: dict[str, Any]) -> Topic:
        if fields["topic"] not in self.topics:
            raise TopicNotFoundError(f"no topic {fields['topic']}")
        return self.topics[fields["topic"]]

    def _describe_topic(self, fields: dict[str, Any]) -> dict[str, Any]:
        return self._find(fields).description()

    def _update_topic(self, fields: dict[str, Any]) -> dict[str, Any]:
        topic = self._find(fields)
        topic.ack = fields.get("ack", topic.ack)
        return topic.description()

    def _delete_topic(self, fields: dict[str, Any]) -> dict[str, Any]:
        del self.topics[self._find(fields).name]
        return {}

    def _list_topics(self, fields: dict[str, Any]) -> dict[str, Any]:
        prefix = fields.get("prefix", "")
        return {"topics": [topic.description() for name, topic in self.topics.items() if name.startswith(prefix)]}

    def _stats(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"topics": [self._find(fields).description()] if "topic" in fields else [], "broker": {}}

    def _ping(self, _fields: dict[str, Any]) -> dict[str, Any]:
        return {"version": "0", "broker_id": "fake"}

    def _open_producer(self, fields: dict[str, Any]) -> dict[str, Any]:
        topic = self._find(fields)
        sent = topic.sent.get(fields["producer"])
        return {
            "next_sequence": sent[-1][0] + sent[-1][1] if sent else 0,
            "schema": topic.description()["schema"],
            "max_message_bytes": self.max_message_bytes,
            "max_batch_bytes": self.max_batch_bytes,
        }


def flight_error(error: IcestreamError) -> fl.FlightError:
    return fl.FlightServerError(str(error), json.dumps(error.to_dict()).encode())
