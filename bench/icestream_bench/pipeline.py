"""`bench pipeline`: how fast a backlog reaches the table, what a pass costs, how fresh the table is.

The floor is one process that reads the same messages as Arrow from memory and writes one Parquet file with the same
codec: no broker, no Spark, no commit.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.client import MAX_IN_FLIGHT, Client
from icestream.config import Settings
from icestream.pipeline.driver import Runner
from icestream.pipeline.spark.session import Spark
from icestream.table import Tables
from icestream_bench.freshness import measure_freshness
from icestream_bench.payloads import BATCH_MESSAGES, publish, random_batch

_SMALL_PASS_MESSAGES = 1000
_SMALL_PASSES = 10
_MANY_TOPICS_MESSAGES = 1000
_PRODUCERS = 8

Progress = Callable[[float], None]


def measure_pipeline(
    broker: str,
    data_dir: Path,
    *,
    messages: int,
    message_bytes: int,
    singles: int,
    topics: int,
    freshness_seconds: int,
    progress: Progress,
) -> dict[str, Any]:
    settings = Settings(data_dir=data_dir)
    batch = random_batch(message_bytes)
    figures: dict[str, Any] = {"message_bytes": message_bytes}
    with Client(broker) as client, session(settings, client) as (runner, session_seconds):
        figures["session_start_s"] = round(session_seconds, 2)
        publish(client, "bench/warm", batch, BATCH_MESSAGES)
        _drain(runner)
        progress(0.1)
        figures["backlog"] = _backlog(client, runner, batch, messages, settings)
        progress(0.35)
        figures["single_message_frames"] = _singles(client, runner, batch, singles)
        progress(0.5)
        figures["many_topics"] = _many_topics(client, runner, batch, topics)
        progress(0.6)
        figures["small_pass"] = _small_passes(client, runner, batch)
        progress(0.65)
    share = 0.35 / 2
    for number, interval_ms in enumerate((1000, 250)):
        figures[f"freshness_{interval_ms}_ms"] = measure_freshness(
            broker,
            data_dir,
            flush_interval_ms=interval_ms,
            seconds=freshness_seconds,
            message_bytes=message_bytes,
            progress=_part(progress, 0.65 + number * share, share),
        )
    return figures


def _part(progress: Progress, first: float, share: float) -> Progress:
    return lambda done: progress(first + share * done)


@contextlib.contextmanager
def session(settings: Settings, client: Client) -> Iterator[tuple[Runner, float]]:
    began = perf_counter()
    with (
        contextlib.closing(Tables(settings)) as tables,
        Spark(settings) as spark,
        Runner(settings, client, tables, spark) as runner,
    ):
        yield runner, perf_counter() - began


def _drain(runner: Runner) -> float:
    """Write all messages to the tables; return the seconds."""
    began = perf_counter()
    write_all(runner)
    return perf_counter() - began


def write_all(runner: Runner) -> int:
    """Write all durable messages to the tables and return their number; raise if a topic fails."""
    figures = runner.drain(threading.Event())
    for topic in figures.topics.values():
        if topic.error is not None:
            raise RuntimeError(f"{topic.topic} was not written: {topic.error}")
    return figures.messages


def _backlog(
    client: Client, runner: Runner, batch: pa.RecordBatch, messages: int, settings: Settings
) -> dict[str, Any]:
    rates, floors = [], []
    for number in range(3):
        topic = f"bench/backlog-{number}"
        publish(client, topic, batch, messages)
        floors.append(messages / _floor_seconds(client, topic, messages, settings))
        rates.append(messages / _drain(runner))
    rate, floor = median(rates), median(floors)
    return {
        "messages": messages,
        "msg_per_s": round(rate),
        "floor_one_process_msg_per_s": round(floor),
        "share_of_floor": round(rate / floor, 3),
    }


def _floor_seconds(client: Client, topic: str, messages: int, settings: Settings) -> float:
    table = client.read(topic, 0, min(messages, 20 * BATCH_MESSAGES))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=BATCH_MESSAGES)
    source, path = sink.getvalue(), settings.data_dir / "floor.parquet"
    level = settings.table.compression_level
    began = perf_counter()
    with (
        pa.ipc.open_stream(source) as reader,
        pq.ParquetWriter(
            path, reader.schema, compression="zstd", compression_level=level, use_dictionary=False
        ) as parquet,
    ):
        for batch in reader:
            parquet.write_batch(batch, row_group_size=100_000)
    seconds = perf_counter() - began
    path.unlink()
    return seconds * messages / int(table.num_rows)


def _singles(client: Client, runner: Runner, batch: pa.RecordBatch, count: int) -> dict[str, Any]:
    """Measure frames of one message each, as producers without batching make them."""
    payloads = batch.column("payload").slice(0, 1000).to_pylist()
    producers = [
        client.producer("bench/singles", max_batch_messages=1, max_in_flight=MAX_IN_FLIGHT) for _ in range(_PRODUCERS)
    ]
    for number in range(count):
        producers[number % _PRODUCERS].send(payloads[number % len(payloads)])
    for producer in producers:
        producer.close()
    seconds = _drain(runner)
    cores = os.cpu_count() or 1
    return {
        "messages": count,
        "msg_per_s": round(count / seconds),
        "msg_per_s_a_core": round(count / seconds / min(cores, 2)),
    }


def _many_topics(client: Client, runner: Runner, batch: pa.RecordBatch, topics: int) -> dict[str, Any]:
    for number in range(topics):
        publish(client, f"many/t{number}", batch, _MANY_TOPICS_MESSAGES)
    first = _drain(runner)
    for number in range(topics):
        publish(client, f"many/t{number}", batch, _MANY_TOPICS_MESSAGES)
    second = _drain(runner)
    return {
        "topics": topics,
        "messages_each": _MANY_TOPICS_MESSAGES,
        "first_pass_with_new_tables_s": round(first, 2),
        "pass_s": round(second, 2),
    }


def _small_passes(client: Client, runner: Runner, batch: pa.RecordBatch) -> dict[str, Any]:
    small, empty = [], []
    for _ in range(_SMALL_PASSES):
        publish(client, "bench/small", batch, _SMALL_PASS_MESSAGES)
        small.append(_drain(runner))
        runner.topics.look()
        began = perf_counter()
        figures = runner.passes.run()
        empty.append(perf_counter() - began)
        assert not figures.topics
    return {
        "messages": _SMALL_PASS_MESSAGES,
        "pass_s": round(median(small), 3),
        "empty_pass_ms": round(median(empty) * 1000, 3),
    }
