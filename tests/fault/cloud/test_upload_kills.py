"""`kill -9` of a real broker while it uploads, again and again."""

import os
import random
from pathlib import Path

from tests.fault.cloud.uploads import check_bytes

from icestream import Client
from icestream.broker_process import BrokerProcess
from icestream.config import Settings
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.storage import IcebergStorage

ROUNDS = 100 if os.environ.get("ICESTREAM_SOAK") else 3
TOPIC = "default/kills"


def test_kills_of_a_broker_leave_no_hole_and_no_confirmed_byte_is_sent_again(tmp_path: Path) -> None:
    rng = random.Random(6)
    store = tmp_path / "objects"
    environ = {
        "ICESTREAM_WAL__MAX_FILE_SIZE": "65536",
        "ICESTREAM_UPLOADER__ENABLED": "true",
        "ICESTREAM_UPLOADER__INTERVAL_SECONDS": "1",
        "ICESTREAM_CLOUD__BACKEND": "fs",
        "ICESTREAM_CLOUD__ROOT": str(store),
    }
    broker = BrokerProcess(tmp_path / "data", environ=environ)
    sent = 0
    confirmed: dict[Path, int] = {}
    for _ in range(ROUNDS):
        broker.start()
        with Client(broker.flight) as client:
            client.create_topic(TOPIC, if_not_exists=True)
            with client.producer(TOPIC) as producer:
                for _ in range(rng.randint(5, 60)):
                    batch = message_batch([b"%d" % (sent + number) + b"x" * 1_000 for number in range(20)])
                    producer.send_batch(batch).result()
                    sent += 20
        broker.kill()
        for path, modified in confirmed.items():
            assert path.stat().st_mtime_ns == modified, "a finished object was written again"
        confirmed = {path: path.stat().st_mtime_ns for path in store.rglob("*.frames")}
    settings = Settings.model_validate(
        {
            "data_dir": tmp_path / "data",
            "uploader": {"enabled": True},
            "cloud": {"backend": "fs", "root": str(store)},
        }
    )
    with IcebergStorage(settings) as storage:
        topic = storage.topics.get(TopicName.parse(TOPIC))
        assert topic.log.durable_end >= sent
        assert topic.cloud is not None
        assert topic.cloud.flush(60.0) == topic.log.durable_end
        described = topic.cloud.registry.objects()
        offset = 0
        for one in described:
            assert one.first_offset == offset, "a hole or an overlap"
            offset = one.end_offset
            check_bytes(one, topic.cloud.store.read(one.key, 0, one.size))
        assert offset == topic.log.durable_end
        assert {one.key for one in described} == {
            found.key for found in topic.cloud.store.list("") if found.key.endswith(".frames")
        }
