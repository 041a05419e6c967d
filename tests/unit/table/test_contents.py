"""Which topics a catalog holds."""

from pathlib import Path

from icestream.config import Settings
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.table import Tables, TableSpec, quarantining_topics, topics_with_tables
from icestream.table.ledger import QUARANTINE


def test_namespaces_with_dots_are_found(tmp_path: Path) -> None:
    tables = Tables(Settings(data_dir=tmp_path))
    names = [TopicName("acme", "a"), TopicName("acme.prod", "b"), TopicName("acme.prod.eu", "c")]
    for name in names:
        table = tables.open(TableSpec(name, "stream", 1, STREAM_SCHEMA, (), ()))
        if name != names[0]:
            with table.iceberg.transaction() as transaction:
                transaction.set_properties({QUARANTINE: "[]"})
    assert topics_with_tables(tables) == names
    assert quarantining_topics(tables) == names[1:]
    tables.close()
