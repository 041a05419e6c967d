"""A database in memory for one query, without any way out of it, in which topics are views."""

import duckdb
import pyarrow.dataset as ds

from icestream.config import QuerySettings
from icestream.model.errors import InvalidRequestError
from icestream.model.names import DEFAULT_NAMESPACE, TopicName

CATALOG = "all topics"
"""A name that no namespace can have, so that `namespace.name` is never taken for a table of a catalog of that name."""
_TAKEN = frozenset({"temp", "system", "pg_catalog", "information_schema"})
"""Names that DuckDB does not give away."""


def open_session(settings: QuerySettings) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,  # with more of them DuckDB reads on and on, whatever of the result is taken
            "memory_limit": f"{settings.max_memory_mb}MiB",
            "temp_directory": "",  # nothing is spilled: a query that needs more memory fails
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,  # else a table name finds variables of this program
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET streaming_buffer_size = '64KB'")  # it does not count the bytes of payloads
    connection.execute(f"ATTACH ':memory:' AS {quoted(CATALOG)}")
    connection.execute(f"USE {quoted(CATALOG)}")
    connection.execute("DETACH memory")
    default = f"{quoted(CATALOG)}.{quoted(DEFAULT_NAMESPACE)}"
    connection.execute(f"CREATE SCHEMA {default}")
    connection.execute(f"USE {default}")
    # From here on a statement can reach nothing but what is in the database, and change none of this.
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def add_topic(connection: duckdb.DuckDBPyConnection, number: int, topic: TopicName, rows: ds.Dataset) -> None:
    if topic.namespace.lower() in _TAKEN:
        raise InvalidRequestError(
            f"topics of the namespace {topic.namespace} cannot be queried: SQL has that name for itself",
            operation="sql",
            place=str(topic),
        )
    hidden = f"rows of topic {number}"
    connection.register(hidden, rows)
    schema = f"{quoted(CATALOG)}.{quoted(topic.namespace)}"
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    connection.execute(f"CREATE VIEW {schema}.{quoted(topic.name)} AS SELECT * FROM {quoted(hidden)}")  # noqa: S608


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
