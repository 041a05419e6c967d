"""Opens catalogs by configuration: SQL (SQLite, PostgreSQL), REST, Glue, memory.

The settings of catalog and object store become properties of the catalog library; those in `catalog.properties` win.
Credentials that are not set come from the environment, as each library finds them. No error text holds a property's
value.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr
from pyiceberg.catalog import Catalog

from icestream.config import Settings
from icestream.model.errors import CatalogUnavailableError, IcestreamError, InvalidRequestError
from icestream.table.files import IMPLEMENTATION

_MAX_REASON = 300
_LIBRARIES = {"rest": "icestream.table.rest_catalog", "glue": "pyiceberg.catalog.glue"}
_HIDDEN = re.compile(r"(?<=//)[^/@\s]*@|\?[^\s\"')]*")  # in a URL: user and password, and the query


def catalog_properties(settings: Settings) -> dict[str, str]:
    """Return the properties for the catalog library."""
    catalog = settings.catalog
    properties = {"type": catalog.type, "py-io-impl": IMPLEMENTATION, **_object_store(settings)}
    if catalog.type == "sql":
        from icestream.table.sql_catalogs import database_uri  # noqa: PLC0415 - slow to import, and writing tasks do not need it

        properties["uri"] = database_uri(str(catalog.uri), catalog.timeout_seconds)
        properties["pool_pre_ping"] = "true"
    elif catalog.uri is not None:
        properties["uri"] = catalog.uri
    if (warehouse := warehouse_location(settings)) is not None:
        properties["warehouse"] = warehouse
    if catalog.type == "rest":
        properties["scan-planning-mode"] = catalog.scan_planning
    if catalog.type == "glue":
        properties.update(_glue(settings))
    return {**properties, **catalog.properties}


def warehouse_location(settings: Settings) -> str | None:
    """Return the warehouse as a URI. A path becomes absolute, so every process means the same one."""
    warehouse, store = settings.catalog.warehouse, settings.object_store
    if warehouse is None:
        return f"s3://{store.bucket}" if settings.catalog.type == "glue" and store.bucket else None
    if settings.catalog.type == "rest" or "://" in warehouse:
        return warehouse
    return f"file://{Path(warehouse).absolute()}"


def load_library(settings: Settings) -> None:
    """Import the catalog's library now, if it is installed, so that `open_catalog` is quick."""
    with suppress(ModuleNotFoundError):
        import_module(_LIBRARIES.get(settings.catalog.type, "icestream.table.sql_catalogs"))


def open_catalog(settings: Settings) -> Catalog:
    """Open a catalog that threads can share. It keeps and reuses its connections."""
    try:
        properties = catalog_properties(settings)
        return _open(settings, properties)
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            f"a {settings.catalog.type} catalog needs the package {error.name}",
            operation="open catalog",
            remedy=f"install {error.name}",
        ) from error
    except Exception as error:
        raise CatalogUnavailableError(
            f"the {settings.catalog.type} catalog cannot be opened: {short_reason(error)}",
            operation="open catalog",
            place=catalog_url(settings),
        ) from error


def _open(settings: Settings, properties: dict[str, str]) -> Catalog:
    # Only the library of this catalog is imported: some are slow to import, some are not installed.
    kind, name = settings.catalog.type, settings.catalog.name
    match kind:
        case "rest":
            from icestream.table.rest_catalog import PatientRestCatalog  # noqa: PLC0415

            return PatientRestCatalog(name, settings.catalog.timeout_seconds, **properties)
        case "glue":
            from pyiceberg.catalog.glue import GlueCatalog  # noqa: PLC0415

            return GlueCatalog(name, **properties)
    from icestream.table.sql_catalogs import MemoryCatalog, make_folder, open_sql  # noqa: PLC0415

    if kind == "memory":
        return MemoryCatalog(name, **properties)
    make_folder(properties["uri"])
    return open_sql(name, properties)


def catalog_url(settings: Settings) -> str:
    """Return the catalog's URL for error texts, without user, password or query."""
    uri = settings.catalog.uri
    if uri is None:
        return f"catalog {settings.catalog.name}"
    parts = urlsplit(uri)
    return f"{parts.scheme}://{(parts.netloc or '').rpartition('@')[2]}{parts.path}"


def short_reason(error: BaseException) -> str:
    """Return a short text for a library's error. Its URLs are without users, passwords and tokens."""
    cause = getattr(error, "orig", error)  # an SQL error itself repeats statement and parameters
    first = _HIDDEN.sub("", str(cause).strip().partition("\n")[0])[:_MAX_REASON]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


@contextmanager
def catalog_errors(operation: str, where: str) -> Iterator[None]:
    """Raise the errors of the catalog and of the tables' store as a retryable error that names the table."""
    try:
        yield
    except IcestreamError:
        raise
    except Exception as error:
        raise CatalogUnavailableError(
            f"the catalog or the tables' store failed: {short_reason(error)}", operation=operation, place=where
        ) from error


def _object_store(settings: Settings) -> dict[str, str]:
    store = settings.object_store
    properties: dict[str, str | None] = {}
    if store.type == "s3":
        properties = {
            "s3.endpoint": store.endpoint,
            "s3.region": store.region or ("us-east-1" if store.endpoint else None),
            "s3.access-key-id": _shown(store.access_key),
            "s3.secret-access-key": _shown(store.secret_key),
            "s3.session-token": _shown(store.session_token),
            "s3.connect-timeout": str(settings.catalog.timeout_seconds),
            "s3.request-timeout": str(settings.catalog.timeout_seconds),
            # Without an endpoint the client always addresses by host name.
            "s3.force-virtual-addressing": "true" if store.endpoint and not store.path_style else None,
        }
    elif store.type == "gcs":
        properties = {"gcs.service.host": store.endpoint}
    elif store.type == "azblob":
        properties = {"adls.account-name": store.account_name, "adls.account-key": _shown(store.account_key)}
    return {key: value for key, value in properties.items() if value is not None}


def _glue(settings: Settings) -> dict[str, str]:
    store = settings.object_store
    found = {
        "glue.endpoint": settings.catalog.uri,
        "glue.region": store.region,
        "glue.access-key-id": _shown(store.access_key),
        "glue.secret-access-key": _shown(store.secret_key),
        "glue.session-token": _shown(store.session_token),
    }
    return {key: value for key, value in found.items() if value is not None}


def _shown(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
