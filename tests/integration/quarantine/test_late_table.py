"""A frame that cannot be written, in a table that has to catch up while another one is ahead."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.quarantine.conftest import QUICK
from tests.plain_files import COPY, NAME, Place

from icestream.model.messages import Encoding
from icestream.wal import prepare

MANY_PASSES = 200


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr("icestream.pipeline.state.JOINED_BYTES", 0)
    made = Place(tmp_path)
    yield made
    made.stop()


def test_it_is_found_while_messages_arrive_for_the_one_that_is_ahead(place: Place) -> None:
    place.start("parquet")
    place.publish(5)
    body = prepare(b"no Arrow at all", message_count=3, encoding=Encoding.ARROW_IPC)
    poison = place.running.storage.topic(str(NAME)).log.append(body).base_offset
    place.published += 3
    place.publish(20)
    place.runner(pipeline=QUICK).drain(threading.Event())
    place.start("both")
    runner = place.runner(pipeline=QUICK, writer={"flush_interval_ms": 1})
    runner.topics.refresh_all()
    state = runner.topics[NAME]
    ahead = 0
    for _ in range(MANY_PASSES):
        if place.committed(NAME) > poison:
            break
        place.publish(1)
        runner.topics.look()
        state.pause.until = 0.0
        runner.passes.run()
        ahead += len(state.fed) == 1 and state.fed[0].name == COPY
    assert ahead > 1, "the two took turns"
    for name in (NAME, COPY):
        (entry,) = place.table(name).quarantined
        assert (entry.first_offset, entry.end_offset) == (poison, poison + 3)
    place.drain(runner)
    assert place.committed(NAME) == place.committed(COPY) == place.published
