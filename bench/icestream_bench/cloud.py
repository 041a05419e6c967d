"""`bench cloud`: how fast the log is uploaded, how fast history is read back, and what uploads cost publishers.

The object store is a real S3 server on this machine. The floors, in the same run: a plain multipart put of as many
bytes to the same server, plain reads of them, and publishing without uploads.
"""

import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from icestream.broker_process import BrokerProcess
from icestream.client import Client
from icestream.config import Settings
from icestream.model.messages import message_batch
from icestream.storage import IcebergStorage
from icestream_bench.figures import Latencies, process_resources
from icestream_bench.payloads import publish, random_batch
from icestream_servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

_UPLOAD_TOPIC = "bench/upload"
_REPLAY_TOPIC = "bench/cloud-replay"
_ACK_TOPIC = "bench/ack"
_LARGE_SEGMENT_BYTES = 8 << 30
_SMALL_SEGMENT_BYTES = 1 << 20
_PART_BYTES = 8 << 20
_TIMEOUT_SECONDS = 600.0
_ROUNDS = 3
_FRAME_MESSAGES = 1_000

Progress = Callable[[float], None]


def measure_cloud(
    directory: Path, *, messages: int, message_bytes: int, upload_mb: int, acks: int, progress: Progress
) -> dict[str, Any]:
    figures: dict[str, Any] = {"message_bytes": message_bytes}
    with S3Server(directory / "s3") as s3:
        environ = _environ(s3)
        with BrokerProcess(directory / "data", environ=environ) as broker, Client(broker.flight) as client:
            figures["upload"] = _upload(client, s3, upload_mb, progress)
            figures["publish"] = _publish_while_uploading(client, upload_mb, acks)
            progress(0.5)
            _history(client, messages, message_bytes, upload_mb)
            progress(0.7)
            broker.terminate()
            firsts = _prune(broker.data_dir, environ)
            broker.start()
            figures["replay"] = _replay(broker, s3, firsts[_REPLAY_TOPIC])
            progress(0.9)
            figures["first_message"] = _first_message(broker, firsts[_UPLOAD_TOPIC])
            figures["broker"] = process_resources(broker.pid)
    return figures


def _environ(s3: S3Server) -> dict[str, str]:
    """Return settings with which uploads happen only on request."""
    values = {
        "WAL__MAX_FILE_SIZE": str(_LARGE_SEGMENT_BYTES),  # a new segment is a reason to upload
        "UPLOADER__ENABLED": "true",
        "UPLOADER__INTERVAL_SECONDS": "86400",
        "UPLOADER__MAX_OBJECT_MB": "1024",
        "CLOUD__BACKEND": "s3",
        "CLOUD__ROOT": f"s3://{s3.bucket}/bench",
        "CLOUD__REGION": REGION,
        "CLOUD__ENDPOINT": s3.url,
        "CLOUD__ACCESS_KEY": ACCESS_KEY,
        "CLOUD__SECRET_KEY": SECRET_KEY,
    }
    return {f"ICESTREAM_{name}": value for name, value in values.items()}


def _upload(client: Client, s3: S3Server, upload_mb: int, progress: Progress) -> dict[str, Any]:
    """Alternate uploads of a backlog with plain puts of as many bytes; report the median of each."""
    client.create_topic(_UPLOAD_TOPIC, storage="log")
    batch = random_batch(1_024).slice(0, _FRAME_MESSAGES)
    count = upload_mb * 1024
    ours: list[float] = []
    plain: list[float] = []
    for number in range(_ROUNDS):
        publish(client, _UPLOAD_TOPIC, batch, count)
        before = _uploaded_bytes(client)
        began = perf_counter()
        client.flush_topic(_UPLOAD_TOPIC, timeout=_TIMEOUT_SECONDS)
        seconds = perf_counter() - began
        nbytes = _uploaded_bytes(client) - before
        ours.append(nbytes / seconds)
        plain.append(nbytes / _plain_put_seconds(s3, nbytes))
        progress(0.3 * (number + 1) / _ROUNDS)
    rate, floor = statistics.median(ours), statistics.median(plain)
    return {
        "mb_per_s": round(rate / 1e6, 1),
        "floor_plain_multipart_put_mb_per_s": round(floor / 1e6, 1),
        "to_floor": round(rate / floor, 3),
    }


def _uploaded_bytes(client: Client) -> int:
    (stats,) = client.stats(_UPLOAD_TOPIC)["topics"]
    return int(stats["cloud_bytes"] or 0)


def _plain_put_seconds(s3: S3Server, nbytes: int) -> float:
    chunk = memoryview(bytes(random_batch(1_024).column("payload").buffers()[2])[:_PART_BYTES])
    files = s3.file_system()
    began = perf_counter()
    with files.open_output_stream(f"{s3.bucket}/plain", buffer_size=None) as stream:
        left = nbytes
        while left > 0:
            stream.write(chunk[:left])
            left -= len(chunk)
    return perf_counter() - began


def _publish_while_uploading(client: Client, upload_mb: int, acks: int) -> dict[str, Any]:
    """Measure acknowledgements of single messages, first alone, then during the upload of another topic."""
    batch = random_batch(1_024).slice(0, _FRAME_MESSAGES)
    alone: list[float] = []
    during: list[float] = []
    with client.producer(_ACK_TOPIC) as producer:
        for _ in range(200):
            producer.send(b"x" * 1_024).result()

        def acknowledge(times: list[float], while_true: Callable[[], bool]) -> None:
            while while_true():
                began = perf_counter()
                producer.send(b"x" * 1_024).result()
                times.append(perf_counter() - began)

        for _ in range(_ROUNDS):
            publish(client, _UPLOAD_TOPIC, batch, upload_mb * 1024)
            enough = len(alone) + acks // _ROUNDS
            acknowledge(alone, lambda enough=enough: len(alone) < enough)  # type: ignore[misc]
            with _flushing(client) as is_running:
                acknowledge(during, is_running)
    quiet, busy = Latencies.of(alone), Latencies.of(during)
    return {
        "without_uploads": asdict(quiet),
        "with_uploads": asdict(busy),
        "p50_to_without": round(busy.p50_ms / quiet.p50_ms, 3),
    }


@contextmanager
def _flushing(client: Client) -> Iterator[Callable[[], bool]]:
    upload = threading.Thread(target=client.flush_topic, args=(_UPLOAD_TOPIC,), kwargs={"timeout": _TIMEOUT_SECONDS})
    upload.start()
    try:
        yield upload.is_alive
    finally:
        upload.join()


def _history(client: Client, messages: int, message_bytes: int, upload_mb: int) -> None:
    """Upload what is read back: many small messages, and one object of the largest size."""
    client.create_topic(_REPLAY_TOPIC, storage="log")
    publish(client, _REPLAY_TOPIC, random_batch(message_bytes), messages)
    publish(client, _UPLOAD_TOPIC, random_batch(1_024).slice(0, _FRAME_MESSAGES), max(upload_mb, 1_024) * 1024)
    for topic in (_REPLAY_TOPIC, _UPLOAD_TOPIC):
        client.flush_topic(topic, timeout=_TIMEOUT_SECONDS)


def _prune(data_dir: Path, environ: dict[str, str]) -> dict[str, int]:
    """Prune the logs up to what is uploaded; return where they begin now."""
    names = {name.removeprefix("ICESTREAM_"): value for name, value in environ.items()}
    tree: dict[str, dict[str, str]] = {}
    for name, value in names.items():
        section, key = name.lower().split("__")
        tree.setdefault(section, {})[key] = value
    firsts = {}
    tree["wal"]["max_file_size"] = str(_SMALL_SEGMENT_BYTES)  # the next message begins a new segment
    with IcebergStorage(Settings(data_dir=data_dir, **tree)) as storage:  # type: ignore[arg-type]
        for name in (_REPLAY_TOPIC, _UPLOAD_TOPIC):
            topic = storage.topic(name)
            assert topic.cloud is not None
            storage.publish(topic, message_batch([b"the next segment"], [None], [None]))
            topic.log.prune(topic.cloud.uploaded_end)
            firsts[name] = topic.log.start_offset
    return firsts


def _replay(broker: BrokerProcess, s3: S3Server, end: int) -> dict[str, Any]:
    rates, plain = [], []
    for _ in range(_ROUNDS):
        with Client(broker.flight) as client:
            began = perf_counter()
            with client.consume(_REPLAY_TOPIC, 0, end=end) as consumer:
                count = sum(int(batch.num_rows) for batch in consumer.batches())
            seconds = perf_counter() - began
        if count != end:
            raise RuntimeError(f"{count} messages were read instead of {end}")
        rates.append(count / seconds)
        plain.append(_plain_read_rate(s3))
    return {
        "messages": end,
        "arrow_msg_per_s": round(statistics.median(rates)),
        "floor_plain_read_mb_per_s": round(statistics.median(plain) / 1e6, 1),
    }


def _plain_read_rate(s3: S3Server) -> float:
    files = s3.file_system()
    began = perf_counter()
    with files.open_input_stream(f"{s3.bucket}/plain") as stream:
        nbytes = 0
        while data := stream.read(_PART_BYTES):
            nbytes += len(data)
    return nbytes / (perf_counter() - began)


def _first_message(broker: BrokerProcess, end: int) -> dict[str, Any]:
    """Read the first message at offsets in all objects, each with a new client."""
    times = []
    with Client(broker.flight) as client:
        client.describe_topic(_UPLOAD_TOPIC)  # opens the log
    for number in range(1, 21):
        offset = end - end * number // 23 - 1
        with Client(broker.flight) as client:
            began = perf_counter()
            with client.consume(_UPLOAD_TOPIC, offset, end=end) as consumer:
                message = next(consumer)
            times.append(perf_counter() - began)
        if message.offset != offset:
            raise RuntimeError(f"offset {message.offset} was read instead of {offset}")
    return {"cold_first_ms": round(times[0] * 1000, 1), **asdict(Latencies.of(times))}
