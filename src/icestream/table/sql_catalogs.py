"""Catalogs in a database: SQLite, the embedded default; PostgreSQL; and one in memory.

Imported where such a catalog is opened and nowhere else: it takes as long to import as all the rest of this package,
and the tasks that write files never need it.
"""

from pathlib import Path

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool

_CREATE_TRIES = 3


class MemoryCatalog(SqlCatalog):
    """A catalog that dies with its process. One connection, which threads take in turn."""

    def __init__(self, name: str, **properties: str) -> None:
        MetastoreCatalog.__init__(self, name, **properties)
        self.engine = create_engine(
            "sqlite://",
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            connect_args={"check_same_thread": False},
        )
        self._init_catalog()


def open_sql(name: str, properties: dict[str, str]) -> SqlCatalog:
    """Two processes may make the catalog's own tables at once; the one that comes second then finds them."""
    for attempt in range(_CREATE_TRIES):
        try:
            return SqlCatalog(name, **properties)
        except SQLAlchemyError as error:
            if attempt == _CREATE_TRIES - 1 or "exists" not in str(error):
                raise
    raise AssertionError


def database_uri(uri: str, timeout_seconds: int) -> str:
    """A database URI with a time-out, unless it has one; a SQLite file's path absolute."""
    url = make_url(uri)
    if url.get_backend_name() == "postgresql":
        if (
            url.drivername == "postgresql"
        ):  # the driver that is installed with the pipeline, not the library's own choice
            url = url.set(drivername="postgresql+psycopg2")
        limits = {"connect_timeout": str(timeout_seconds), "tcp_user_timeout": str(timeout_seconds * 1000)}
        missing = {name: value for name, value in limits.items() if name not in url.query}
        return url.update_query_dict(missing).render_as_string(hide_password=False)
    if url.get_backend_name() != "sqlite":
        return uri
    if url.database and url.database != ":memory:" and not url.database.startswith("file:"):
        url = url.set(database=str(Path(url.database).absolute()))
    if "timeout" not in url.query:
        url = url.update_query_dict({"timeout": str(timeout_seconds)})
    return url.render_as_string(hide_password=False)


def make_folder(uri: str) -> None:
    """Make the directory of a SQLite file."""
    url = make_url(uri)
    if url.get_backend_name() == "sqlite" and url.database and url.database.startswith("/"):
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)


def jdbc_options(uri: str, timeout_seconds: int) -> dict[str, str | None]:
    """The same database for Java."""
    url = make_url(uri)
    if url.get_backend_name() == "sqlite":
        return {"uri": f"jdbc:sqlite:{url.database}?busy_timeout={timeout_seconds * 1000}"}
    server = f"{url.host or 'localhost'}{f':{url.port}' if url.port else ''}"
    return {
        "uri": f"jdbc:{url.get_backend_name()}://{server}/{url.database or ''}",
        "jdbc.user": url.username,
        "jdbc.password": None if url.password is None else str(url.password),
    }
