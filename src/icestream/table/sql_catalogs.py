"""Catalogs in a database: SQLite (the embedded default), PostgreSQL, and one in memory.

Import this module only where such a catalog is opened: it takes as long to import as the rest of this package, and the
tasks that write files do not need it.
"""

from pathlib import Path
from typing import Any

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from icestream.model.errors import CatalogUnavailableError

_CREATE_TRIES = 3


class MemoryCatalog(SqlCatalog):
    """A catalog that ends with its process. Threads share its one connection in turn.

    The constructor repeats the library's, which offers no way to choose the connection pool.
    """

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
    """Open a catalog in a database. Retry if another process creates the catalog's tables at the same time."""
    for attempt in range(_CREATE_TRIES):
        try:
            catalog = SqlCatalog(name, **properties)
        except SQLAlchemyError as error:
            if attempt == _CREATE_TRIES - 1 or "exists" not in str(error):
                raise
        else:
            watch_file(catalog.engine)
            return catalog
    raise AssertionError


def watch_file(engine: Engine) -> None:
    """Let no connection outlive the file of a SQLite catalog.

    SQLite reads on in a file that was moved away, fails to write to it, and makes an empty file when it connects again.
    So each use looks at the path first: without a file it is an error, with another file it connects again.
    """
    path = engine.url.database or ""
    if engine.url.get_backend_name() != "sqlite" or not path.startswith("/"):
        return

    @event.listens_for(engine, "do_connect")
    def check_before_connecting(*_: object) -> None:
        _identity(path)

    @event.listens_for(engine, "connect")
    def note_file(_connection: object, record: Any) -> None:
        record.info["file"] = _identity(path)

    @event.listens_for(engine, "checkout")
    def check_file(_connection: object, record: Any, _proxy: object) -> None:
        if record.info.get("file") != _identity(path):
            raise DisconnectionError

    engine.dispose()  # connections from before do not know their file


def _identity(path: str) -> tuple[int, int]:
    """Return what tells a file from another one at the same path."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        raise CatalogUnavailableError(
            "the catalog is gone: its file was moved or deleted",
            operation="open catalog",
            place=path,
            remedy="put it back; if it is lost, make a new one with `icestream table register --all`",
        ) from None
    return found.st_dev, found.st_ino


def database_uri(uri: str, timeout_seconds: int) -> str:
    """Return a database URI with a time-out, unless it has one, and with an absolute path of a SQLite file."""
    url = make_url(uri)
    if url.get_backend_name() == "postgresql":
        if url.drivername == "postgresql":  # the driver that the pipeline installs, not the library's default
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
    """Create the directory of a SQLite file."""
    url = make_url(uri)
    if url.get_backend_name() == "sqlite" and url.database and url.database.startswith("/"):
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)


def jdbc_options(uri: str, timeout_seconds: int) -> dict[str, str | None]:
    """Return the options for the same database through JDBC."""
    url = make_url(uri)
    if url.get_backend_name() == "sqlite":
        return {"uri": f"jdbc:sqlite:{url.database}?busy_timeout={timeout_seconds * 1000}"}
    server = f"{url.host or 'localhost'}{f':{url.port}' if url.port else ''}"
    return {
        "uri": f"jdbc:{url.get_backend_name()}://{server}/{url.database or ''}",
        "jdbc.user": url.username,
        "jdbc.password": None if url.password is None else str(url.password),
    }
