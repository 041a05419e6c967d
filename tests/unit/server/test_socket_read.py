"""A read over the socket door whose frames retention removes meanwhile."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.reading import TOPIC, Stage

from icestream.model.callers import FULL_ACCESS
from icestream.model.messages import STREAM_SCHEMA
from icestream.protocol.read import ReadTicket
from icestream.protocol.socket import MessageKind, split_batch, split_frames
from icestream.server.metrics import BrokerMetrics
from icestream.server.socket import read as socket_read
from icestream.server.socket.read import SocketRead


class Peer:
    """Collects the offsets that are sent."""

    def __init__(self) -> None:
        self.kinds: list[MessageKind] = []
        self.offsets: list[int] = []

    def send(self, *parts: Any) -> None:
        body = memoryview(b"".join(bytes(part) for part in parts))[4:]
        self.kinds.append(MessageKind(body[0]))
        if self.kinds[-1] is MessageKind.FRAMES:
            self.offsets += [
                offset for frame in split_frames(body) for offset in range(frame.base_offset, frame.end_offset)
            ]
        elif self.kinds[-1] is MessageKind.BATCH:
            batch = pa.ipc.read_record_batch(pa.py_buffer(split_batch(body)[1]), STREAM_SCHEMA)
            self.offsets += batch.column("offset").to_pylist()


def test_they_come_from_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path)
    for number in range(60):
        stage.publish([b"%d %s" % (number, b"x" * 900)])
    stage.commit()
    monkeypatch.setattr(socket_read, "_READ_BYTES", 1_000)
    peer, metrics = Peer(), BrokerMetrics(stage.storage)
    read = SocketRead(stage.storage, ReadTicket(str(TOPIC), start=0), FULL_ACCESS)
    read._send_next(peer, metrics)  # type: ignore[arg-type]
    assert (peer.kinds, peer.offsets) == ([MessageKind.FRAMES], [0])
    assert read._frames is not None
    read._frames.close()  # its lease, as after a long pause
    assert stage.prune() > 1
    read.run(peer, metrics, lambda: False)  # type: ignore[arg-type]
    assert peer.offsets == list(range(60))
    assert MessageKind.BATCH in peer.kinds
    read.close()
    stage.close()
