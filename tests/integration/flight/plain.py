"""A Flight client that knows `docs/protocol.md` and nothing of icestream's own client or model."""

import base64
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

PATIENCE_SECONDS = 120.0
MESSAGES = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
ERROR_FIELDS = {"code", "message", "operation", "place", "remedy", "retryable", "details"}
Answer = dict[str, Any]


def messages(*payloads: bytes, keys: Sequence[bytes | None] | None = None) -> pa.RecordBatch:
    count = len(payloads)
    return pa.record_batch(
        [pa.array(keys or [None] * count, pa.binary()), pa.nulls(count, MESSAGES[1].type), pa.array(payloads)],
        schema=MESSAGES,
    )


def encoded(schema: pa.Schema) -> str:
    """A schema as the actions take it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


class Publishing:
    """One DoPut stream."""

    def __init__(
        self, client: fl.FlightClient, schema: pa.Schema = MESSAGES, path: Sequence[str] = ("publish",)
    ) -> None:
        options = fl.FlightCallOptions(timeout=PATIENCE_SECONDS)
        self.writer, self.reader = client.do_put(fl.FlightDescriptor.for_path(*path), schema, options)

    def write(self, batch: pa.RecordBatch, metadata: bytes | None = None, **fields: Any) -> None:
        self.writer.write_with_metadata(batch, json.dumps(fields).encode() if metadata is None else metadata)

    def write_alone(self, body: bytes, **fields: Any) -> None:
        """A message without a batch."""
        request = json.dumps(fields).encode()
        self.writer.write_metadata(b"\x01" + len(request).to_bytes(4, "little") + request + body)

    def publish_alone(self, body: bytes, **fields: Any) -> Answer:
        self.write_alone(body, **fields)
        return self.answer()

    def answer(self) -> Answer:
        data = self.reader.read()
        if data is None:
            self.writer.close()  # raises what ended the stream
            raise AssertionError("the stream has ended without an answer")
        result: Answer = json.loads(data.to_pybytes())
        return result

    def publish(self, batch: pa.RecordBatch, metadata: bytes | None = None, **fields: Any) -> Answer:
        self.write(batch, metadata, **fields)
        return self.answer()

    def refused(self, code: str, batch: pa.RecordBatch, metadata: bytes | None = None, **fields: Any) -> Answer:
        """The error of a batch that must be refused."""
        return error_of(self.publish(batch, metadata, **fields), code)

    def finish(self) -> list[Answer]:
        """Send no more; the answers that were not read yet."""
        self.writer.done_writing()
        answers = []
        while (data := self.reader.read()) is not None:
            answers.append(json.loads(data.to_pybytes()))
        self.writer.close()
        return answers


class PlainClient:
    def __init__(self, address: str) -> None:
        self.flight = fl.FlightClient(address.replace("grpc:", "grpc+tcp:"))
        self._options = fl.FlightCallOptions(timeout=PATIENCE_SECONDS)
        self._streams: list[Publishing] = []

    def publishing(self, schema: pa.Schema = MESSAGES, path: Sequence[str] = ("publish",)) -> Publishing:
        self._streams.append(Publishing(self.flight, schema, path))
        return self._streams[-1]

    def action(self, name: str, body: bytes | None = None, **fields: Any) -> Answer:
        data = json.dumps(fields).encode() if body is None else body
        (result,) = self.flight.do_action(fl.Action(name, data), self._options)
        answer: Answer = json.loads(result.body.to_pybytes())
        return answer

    def reader(self, ticket: bytes | None = None, **fields: Any) -> Any:
        data = json.dumps(fields).encode() if ticket is None else ticket
        return self.flight.do_get(fl.Ticket(data), self._options)

    def read(self, **fields: Any) -> pa.Table:
        return self.reader(**fields).read_all()

    def payloads(self, topic: str, **fields: Any) -> list[bytes]:
        found: list[bytes] = self.read(topic=topic, **fields)["payload"].to_pylist()
        return found

    def close(self) -> None:
        for stream in self._streams:
            with contextlib.suppress(fl.FlightError, pa.ArrowException):  # finished before, or broken
                stream.finish()
        self.flight.close()


def error_of(answer: Answer, code: str) -> Answer:
    """The error in an answer, which must have the shape that every error has."""
    error: Answer = answer["error"]
    assert set(error) == ERROR_FIELDS
    assert error["code"] == code, error
    assert isinstance(error["retryable"], bool)
    return error


def failure(call: Callable[..., Any], *arguments: Any, **fields: Any) -> Answer:
    """The typed error that a call must fail with: JSON in the status' extra information."""
    with pytest.raises(fl.FlightError) as caught:
        call(*arguments, **fields)
    error: Answer = json.loads(caught.value.extra_info)
    assert set(error) == ERROR_FIELDS
    assert error["message"]
    return error
