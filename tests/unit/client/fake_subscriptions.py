"""A broker of one exclusive subscription, in memory: it keeps the protocol strictly, and breaks off on order."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
from tests.tcp_proxy import HOST, TcpProxy

from icestream.model.errors import IcestreamError
from icestream.model.messages import STREAM_SCHEMA

DELIVERY_SCHEMA = STREAM_SCHEMA.append(pa.field("redelivery_count", pa.int32()))
PATIENCE_SECONDS = 60.0


def flight_error(error: IcestreamError) -> fl.FlightError:
    return fl.FlightServerError(str(error), json.dumps(error.to_dict()).encode())


class FakeSubscriptions(fl.FlightServerBase):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._proxy = TcpProxy(f"{HOST}:{self.port}")
        self._proxy.allow()
        self.url = f"grpc://{self._proxy.address}"
        self.changed = threading.Condition()
        self.payloads: list[bytes] = []
        self.acked: set[int] = set()
        self.deliveries: dict[int, int] = {}
        """How often each offset was delivered."""
        self.requests: list[dict[str, Any]] = []
        self.controls: list[dict[str, Any]] = []
        self.batch_messages = 100
        self.session_timeout_ms = 30_000
        self.refusal: IcestreamError | None = None
        self.flush_failure: IcestreamError | None = None
        self._ending: IcestreamError | None = None
        self._streams = 0
        self._stopping = False

    # ---- what a test does

    def publish(self, *payloads: bytes) -> None:
        with self.changed:
            self.payloads += payloads
            self.changed.notify_all()

    def end_streams(self, error: IcestreamError) -> None:
        """Announce the end of all streams; those that come then are served."""
        with self.changed:
            self._ending = error
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: not self._streams, PATIENCE_SECONDS)
            self._ending = None

    def cut(self) -> None:
        """Break the connections without a word, and listen again at the same address."""
        self._proxy.refuse()
        with self.changed:
            assert self.changed.wait_for(lambda: not self._streams, PATIENCE_SECONDS)
        self._proxy.allow()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_SECONDS)

    def stop(self) -> None:
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        self._proxy.close()
        self.shutdown()

    # ---- a stream

    def do_exchange(self, _context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        assert list(descriptor.path) == [b"subscribe"]
        request = json.loads(reader.read_chunk().app_metadata.to_pybytes())
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
            if self.refusal is not None:
                raise flight_error(self.refusal)
            self._streams += 1
        try:
            self._serve(_Stream(self, request, writer), request, reader, writer)
            if self._ending is not None:
                raise flight_error(self._ending)
        finally:
            with self.changed:
                self._streams -= 1
                self.changed.notify_all()

    def _serve(self, stream: "_Stream", request: dict[str, Any], reader: Any, writer: Any) -> None:
        writer.begin(DELIVERY_SCHEMA)
        accepted = {"session_timeout_ms": self.session_timeout_ms, "type": request.get("type", "exclusive")}
        accepted |= {name: request[name] for name in ("topic", "subscription", "consumer")}
        stream.tell({"subscribed": accepted})
        delivering = threading.Thread(target=stream.deliver)
        delivering.start()
        try:
            while True:
                stream.apply(json.loads(reader.read_chunk().app_metadata.to_pybytes()))
        except StopIteration:
            pass
        finally:
            stream.end()
            delivering.join()

    def _next(self, stream: "_Stream") -> list[int] | None:
        """Waits for what the stream gets next; None when it is to end."""
        with self.changed:
            self.changed.wait_for(
                lambda: self._stopping or stream.ended or self._ending is not None or self._due(stream)
            )
            if self._stopping or stream.ended or self._ending is not None:
                return None
            offsets = self._due(stream)
            for offset in offsets:
                self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
            stream.sent.update(offsets)
            return offsets

    def _due(self, stream: "_Stream") -> list[int]:
        taken = self.acked | stream.sent
        wanted = [offset for offset in range(len(self.payloads)) if offset not in taken]
        fitting = wanted[: min(self.batch_messages, stream.messages)]
        return fitting if stream.nbytes > 0 else []

    def batch(self, offsets: list[int]) -> pa.RecordBatch:
        rows = [
            {
                "offset": offset,
                "publish_time": offset,
                "producer": "p",
                "sequence": offset,
                "payload": self.payloads[offset],
                "redelivery_count": self.deliveries[offset] - 1,
            }
            for offset in offsets
        ]
        return pa.RecordBatch.from_pylist(rows, DELIVERY_SCHEMA)

    @property
    def ending(self) -> IcestreamError | None:
        return self._ending


class _Stream:
    def __init__(self, broker: FakeSubscriptions, request: dict[str, Any], writer: Any) -> None:
        self._broker = broker
        self._limits = (request["max_messages"], request["max_bytes"])
        self.messages, self.nbytes = self._limits
        self._writer = writer
        self._lock = threading.Lock()
        self.sent: set[int] = set()
        self.ended = False

    def end(self) -> None:
        with self._broker.changed:
            self.ended = True
            self._broker.changed.notify_all()

    def tell(self, fields: dict[str, Any]) -> None:
        with self._lock:
            self._writer.write_metadata(json.dumps(fields).encode())

    def deliver(self) -> None:
        broker = self._broker
        try:
            while (offsets := broker._next(self)) is not None:
                batch = broker.batch(offsets)
                with broker.changed:
                    self.messages -= batch.num_rows
                    self.nbytes -= batch.nbytes
                    broker.changed.notify_all()
                with self._lock:
                    self._writer.write_batch(batch)
            if broker.ending is not None and not self.ended:
                self.tell({"error": broker.ending.to_dict()})
        except (fl.FlightError, pa.ArrowException):
            pass  # cut

    def apply(self, control: dict[str, Any]) -> None:
        broker = self._broker
        with broker.changed:
            broker.controls.append(control)
            ranges = control.get("ack", [])
            if "ack_cumulative" in control:
                ranges = [*ranges, [0, control["ack_cumulative"] + 1]]
            broker.acked |= self.sent & {offset for first, end in ranges for offset in range(first, end)}
            for first, end in control.get("nack", []):
                self.sent -= set(range(first, end))
            messages, nbytes = control.get("grant", (0, 0))
            self.messages += messages
            self.nbytes = min(
                self._limits[1], self.nbytes + nbytes
            )  # about: the two sides may count a few bytes otherwise
            assert self.messages <= self._limits[0], "more credit was given back than was used"
            broker.changed.notify_all()
        if "flush" in control:
            failure = {} if broker.flush_failure is None else {"failure": broker.flush_failure.to_dict()}
            self.tell({"flushed": control["flush"], **failure})
