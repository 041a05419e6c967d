"""Readers with nothing but the catalog, of a topic that has two tables: the one that reaches farthest counts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.plain_files import COPY, NAME, Place
from tests.reading import TOPIC

from icestream.config import Settings
from icestream.model.errors import InvalidRequestError
from icestream.model.offsets import StartPosition
from icestream.query import CatalogTopics, QueryEngine
from icestream.storage import ReadOnlyStorage


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.stop()


def offsets(settings: Settings, start: str = "earliest") -> list[int]:
    with ReadOnlyStorage(settings) as storage:
        reader = storage.reader(TOPIC, StartPosition.parse(start))
        found = []
        while batches := reader.read():
            found += [offset for batch in batches for offset in batch.column(0).to_pylist()]
        reader.close()
        return found


def counted(settings: Settings) -> int:
    with ReadOnlyStorage(settings) as storage:
        query = QueryEngine(settings.query, CatalogTopics(storage)).run("SELECT count(*) AS n FROM default.events")
        return int(next(iter(query.batches())).column("n")[0].as_py())


def test_a_table_that_is_being_filled_hides_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.start("parquet")
    place.publish(40)
    place.drain()
    place.prune()
    monkeypatch.setattr("icestream.pipeline.state.JOINED_BYTES", 0)
    place.start("both")
    runner = place.runner()
    runner.topics.refresh_all()
    runner.passes.run()
    assert place.committed(NAME) < place.committed(COPY) == 40
    assert offsets(place.settings()) == list(range(40))
    assert counted(place.settings()) == 40


@pytest.mark.parametrize("chosen", ["parquet", "both", "iceberg"])
def test_a_reader_need_not_know_the_format(place: Place, chosen: str) -> None:
    place.start("both")
    place.publish(10)
    place.drain()
    for other in ("parquet", "iceberg"):
        place.start(other)
        place.publish(10)
        place.drain()
        settings = place.settings(storage={"format": chosen})
        assert offsets(settings) == list(range(place.published))
        assert counted(settings) == place.published


def test_who_follows_goes_on_in_the_table_that_is_written(place: Place) -> None:
    place.start("both")
    place.publish(10)
    place.drain()
    with ReadOnlyStorage(place.settings()) as storage:
        reader = storage.reader(TOPIC)
        assert sum(batch.num_rows for batch in reader.read()) == 10
        for storage_format in ("parquet", "iceberg"):
            place.start(storage_format)
            place.publish(5)
            place.drain()
            assert reader.wait(60.0)
            found = [offset for batch in reader.read() for offset in batch.column(0).to_pylist()]
            assert found == list(range(place.published - 5, place.published))
        reader.close()


def test_a_snapshot_is_found_in_either_table(place: Place) -> None:
    place.start("both")
    place.publish(10)
    place.drain()
    old = place.table(NAME).snapshot_id
    place.start("parquet")
    place.publish(10)
    place.drain()
    new = place.table(COPY).snapshot_id
    for chosen in ("parquet", "iceberg"):
        settings = place.settings(storage={"format": chosen})
        assert offsets(settings, f"snapshot:{old}") == list(range(10, 20))
        assert offsets(settings, f"snapshot:{new}") == []
        with pytest.raises(InvalidRequestError, match="no snapshot 1"):
            offsets(settings, "snapshot:1")


def test_the_copy_of_an_earlier_topic_is_not_read(place: Place) -> None:
    place.start("parquet")
    place.publish(20)
    place.drain()
    place.client.delete_topic(TOPIC, keep_table=True)
    place.published = 0
    place.start("iceberg")
    place.publish(5)
    place.drain()
    assert place.committed(COPY) == 20
    assert offsets(place.settings()) == list(range(5))
    assert counted(place.settings()) == 5
