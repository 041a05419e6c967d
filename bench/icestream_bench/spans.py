"""Generates spans by column, as many services send them: traces of a few spans that arrive together."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.model.messages import stream_schema
from icestream.telemetry import Signal, to_batch, topic_schema
from icestream_bench.otlp_convert import START_NANOS, traces_request

SPANS_A_TRACE = 8
SPANS_A_BATCH = 8_192
_SERVICES = 32
_SPANS_A_SERVICE = 1_024
_SPAN_MICROS = 1_000  # a thousand spans a second, so that a large table covers hours
_TRACES_AT_A_TIME = 16

SCHEMA = stream_schema(topic_schema(Signal.TRACES))


class Spans:
    """An endless stream of spans, the same for the same seed."""

    def __init__(self, seed: int = 1) -> None:
        self._random = np.random.default_rng(seed)
        self._templates = pa.Table.from_batches(_templates(random.Random(seed))).combine_chunks()
        self.trace_ids: list[bytes] = []
        """One trace of each batch."""

    def batches(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for first in range(start, end, SPANS_A_BATCH):
            yield self._batch(first, min(SPANS_A_BATCH, end - first))

    def _batch(self, first: int, count: int) -> pa.RecordBatch:
        rows = self._templates.take(self._random.integers(0, self._templates.num_rows, count))
        traces = self._random.bytes(16 * -(-count // SPANS_A_TRACE))
        micros = self.time_us(np.arange(first, first + count))
        nanos = 1_000 * micros
        columns = {
            "_offset": pa.array(np.arange(first, first + count)),
            "_publish_time": pa.array(micros).cast(SCHEMA.field("_publish_time").type),
            "_producer": pa.repeat("otlp", count),
            "_sequence": pa.array(np.arange(first, first + count)),
            "time": pa.array(micros).cast(SCHEMA.field("time").type),
            "trace_id": _binary(traces, 16).take(self._order(count)),
            "span_id": _binary(self._random.bytes(8 * count), 8),
            "parent_span_id": _binary(self._random.bytes(8 * count), 8),
            "start_time_unix_nano": pa.array(nanos),
            "end_time_unix_nano": pa.array(nanos + self._random.integers(0, 10**9, count)),
        }
        self.trace_ids.append(columns["trace_id"][int(self._random.integers(0, count))].as_py())
        found = [columns[name] if name in columns else rows[name].combine_chunks() for name in SCHEMA.names]
        return pa.RecordBatch.from_arrays(found, schema=SCHEMA)

    @staticmethod
    def time_us(offset: Any) -> Any:
        """Return when a span begins and is published."""
        return START_NANOS // 1_000 + _SPAN_MICROS * offset

    def _order(self, count: int) -> np.ndarray:
        """Return the trace of each span: the spans of a few traces are mixed."""
        traces = np.arange(count) // SPANS_A_TRACE
        mixed = SPANS_A_TRACE * _TRACES_AT_A_TIME
        for begin in range(0, count, mixed):
            self._random.shuffle(traces[begin : begin + mixed])
        return traces


def _templates(source: random.Random) -> Iterator[pa.RecordBatch]:
    for number in range(_SERVICES):
        request = traces_request(source, _SPANS_A_SERVICE)
        request.resource_spans[0].resource.attributes[0].value.string_value = f"service-{number:02d}"
        yield to_batch(Signal.TRACES, request.SerializeToString())


def _binary(content: bytes, width: int) -> pa.Array:
    count = len(content) // width
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(content)])
    return fixed.cast(pa.binary())
