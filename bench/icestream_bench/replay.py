"""`bench replay`: how fast history is read from the log, and from the table once the log is pruned.

The floors, in the same run: Parquet's own reader over the table's files, and a bare Flight server that sends the same
batches from memory.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import flight

from icestream.broker_process import BrokerProcess
from icestream.client import Client
from icestream.config import Settings
from icestream.model.messages import stream_schema
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.storage import IcebergStorage, Topic
from icestream.table import Tables, TableSpec, TopicTable
from icestream_bench.figures import process_resources
from icestream_bench.floors import floor_server
from icestream_bench.payloads import BATCH_MESSAGES, publish, random_batch

_TOPIC = "bench/replay"
_MANY_FILES_TOPIC = "bench/many-files"
_FEW_FILES_TOPIC = "bench/few-files"
_RANGE_MESSAGES = 500_000  # in one data file, about as many as the pipeline writes
_FILES_A_COMMIT = 500
_FEW_FILES = 1_500
_ROWS_A_FILE = 10
_SMALL_SEGMENT_BYTES = 1 << 20
_WRITE_BYTES = 256 << 20

Progress = Callable[[float], None]


def measure_replay(
    broker: BrokerProcess, *, messages: int, message_bytes: int, files: int, progress: Progress
) -> dict[str, Any]:
    figures: dict[str, Any] = {"message_bytes": message_bytes, "messages": messages}
    with Client(broker.flight) as client:
        publish(client, _TOPIC, random_batch(message_bytes), messages)
    progress(0.2)
    figures["log"] = {"arrow_msg_per_s": _arrow_rate(broker, 0, messages)}
    progress(0.3)
    table_end, table_files = _move_to_table(broker)
    progress(0.5)
    figures["table"] = _from_table(broker, table_end, table_files, progress)
    progress(0.8)
    figures["floors"] = {
        "parquet_reader_msg_per_s": _parquet_rate(table_files),
        "bare_flight_msg_per_s": _bare_flight_rate(message_bytes, table_end),
    }
    progress(0.85)
    figures["many_files"] = _many_files(broker.data_dir.parent / "many-files", files)
    return figures


def _from_table(broker: BrokerProcess, end: int, files: list[str], progress: Progress) -> dict[str, Any]:
    _arrow_rate(broker, 0, min(end, BATCH_MESSAGES))  # the first read opens the catalog
    before = process_resources(broker.pid)["rss_mb"]
    half = _arrow_rate(broker, 0, end // 2)
    between = process_resources(broker.pid)["rss_mb"]
    arrow = _arrow_rate(broker, 0, end)
    after = process_resources(broker.pid)["rss_mb"]
    progress(0.65)
    return {
        "messages": end,
        "files": len(files),
        "arrow_msg_per_s": max(arrow, half),
        "python_messages_per_s": _python_rate(broker, end),
        "broker_rss_mb_before": before,
        "broker_rss_mb_after_half": between,
        "broker_rss_mb_after_all": after,
    }


def _arrow_rate(broker: BrokerProcess, start: int, end: int) -> int:
    with Client(broker.flight) as client:
        began = perf_counter()
        with client.consume(_TOPIC, start, end=end) as consumer:
            count = sum(int(batch.num_rows) for batch in consumer.batches())
        seconds = perf_counter() - began
    if count != end - start:
        raise RuntimeError(f"{count} messages were read instead of {end - start}")
    return round(count / seconds)


def _python_rate(broker: BrokerProcess, end: int) -> int:
    with Client(broker.flight) as client:
        began = perf_counter()
        with client.consume(_TOPIC, 0, end=end) as consumer:
            count = sum(1 for _ in consumer)
        seconds = perf_counter() - began
    if count != end:
        raise RuntimeError(f"{count} messages were read instead of {end}")
    return round(count / seconds)


def _move_to_table(broker: BrokerProcess) -> tuple[int, list[str]]:
    """Write the log to the table and prune it; return the log's new start, and the table's files below that."""
    broker.terminate()
    with IcebergStorage(Settings(data_dir=broker.data_dir)) as storage, _table(storage, _TOPIC) as (topic, opened):
        table = opened
        paths: list[tuple[int, str]] = []
        for start in range(0, topic.log.durable_end, _RANGE_MESSAGES):
            end = min(start + _RANGE_MESSAGES, topic.log.durable_end)
            reader = topic.reader(StartPosition.offset(start))
            files = table.writer().write(topic.read(reader, end=end), max_memory_bytes=_WRITE_BYTES)
            table = table.commit(files, start=start, end=end, epoch=topic.record.epoch)
            paths += [(file.last_offset, file.data_file.file_path) for file in files]
        table_end = _prune(storage, topic)
    broker.start()
    return table_end, [path for last, path in paths if last < table_end]


@contextlib.contextmanager
def _table(storage: IcebergStorage, name: str) -> Iterator[tuple[Topic, TopicTable]]:
    topic = storage.topic(name)
    record = topic.record
    with contextlib.closing(Tables(storage.settings)) as tables:
        yield (
            topic,
            tables.open(
                TableSpec(TopicName.parse(name), record.stream_id, record.epoch, stream_schema(topic.body_schema))
            ),
        )


def _prune(storage: IcebergStorage, topic: Topic) -> int:
    """Prune the messages that the table has; return the log's new start."""
    storage.table_watch.hint(topic.name)
    if storage.table_watch.wait(topic, topic.log.durable_end, timeout_seconds=60) is None:
        raise RuntimeError("the storage does not see the table")
    topic.log.prune(topic.log.durable_end)
    if topic.log.start_offset == 0:
        raise RuntimeError("the log has one segment only: measure with more messages")
    return topic.log.start_offset


def _parquet_rate(files: list[str]) -> int:
    began = perf_counter()
    count = 0
    for path in files:
        with pq.ParquetFile(path.removeprefix("file://")) as file:
            count += sum(batch.num_rows for batch in file.iter_batches(65_536))
    return round(count / (perf_counter() - began))


def _bare_flight_rate(message_bytes: int, messages: int) -> int:
    """Receive as many messages from a server that sends them from memory."""
    with (
        floor_server("memory", message_bytes, messages) as (port, _),
        flight.connect(f"grpc://127.0.0.1:{port}") as client,
    ):
        began = perf_counter()
        count = sum(int(chunk.data.num_rows) for chunk in client.do_get(flight.Ticket(b"all")))
        rate = count / (perf_counter() - began)
    return round(rate)


def _many_files(data_dir: Path, files: int) -> dict[str, Any]:
    """Measure the first message of a topic whose history is in very many files."""
    messages = files * _ROWS_A_FILE
    with BrokerProcess(data_dir, environ={"ICESTREAM_WAL__MAX_FILE_SIZE": str(_SMALL_SEGMENT_BYTES)}) as broker:
        few = _FEW_FILES * _ROWS_A_FILE
        with Client(broker.flight) as client:
            publish(client, _FEW_FILES_TOPIC, random_batch(100), few)
            publish(client, _MANY_FILES_TOPIC, random_batch(100), messages)
        broker.terminate()
        with IcebergStorage(Settings(data_dir=data_dir)) as storage:
            for name in (_FEW_FILES_TOPIC, _MANY_FILES_TOPIC):
                with _table(storage, name) as (topic, table):
                    _write_many(topic, table)
                    _prune(storage, topic)
        broker.start()
        with Client(broker.flight) as client:
            opening = _first_message_seconds(client, _FEW_FILES_TOPIC, few)  # opens the catalog
            before = process_resources(broker.pid)["rss_mb"]
            first = _first_message_seconds(client, _MANY_FILES_TOPIC, messages)
        return {
            "files": files,
            "first_message_s": round(first, 3),
            "first_message_of_few_files_with_catalog_opened_s": round(opening, 3),
            "broker_rss_mb_before": before,
            "broker_peak_rss_mb": process_resources(broker.pid)["peak_rss_mb"],
        }


def _first_message_seconds(client: Client, topic: str, end: int) -> float:
    client.describe_topic(topic)  # opens the log
    began = perf_counter()
    with client.consume(topic, 0, end=end) as consumer:
        next(consumer)
        return perf_counter() - began


def _write_many(topic: Topic, table: TopicTable) -> None:
    end = topic.log.durable_end
    step = _FILES_A_COMMIT * _ROWS_A_FILE
    for start in range(0, end, step):
        until = min(start + step, end)
        batches = list(topic.read(topic.reader(StartPosition.offset(start)), end=until))
        rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        writer = table.writer()
        files = [
            file
            for first in range(0, rows.num_rows, _ROWS_A_FILE)
            for file in writer.write([rows.slice(first, _ROWS_A_FILE)], max_memory_bytes=_WRITE_BYTES)
        ]
        table = table.commit(files, start=start, end=until, epoch=topic.record.epoch)
