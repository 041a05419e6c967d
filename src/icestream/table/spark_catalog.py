"""Spark's options for the same catalog and object store.

A pure function of the settings, for maintenance and for notebooks. `catalog.properties` are passed on, because both
libraries share most names. The options hold secrets.
"""

from icestream.config import Settings
from icestream.model.errors import InvalidRequestError
from icestream.table.catalogs import catalog_properties, warehouse_location

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_FILE_IO = {
    "s3": "org.apache.iceberg.aws.s3.S3FileIO",
    "gcs": "org.apache.iceberg.gcp.gcs.GCSFileIO",
    "azblob": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
}


def spark_catalog_options(settings: Settings) -> dict[str, str]:
    """Return the Spark configuration with which the tables are `{catalog.name}.{namespace}.{topic}`."""
    prefix = f"spark.sql.catalog.{settings.catalog.name}"
    options = {**_catalog(settings), **_store(settings), "cache-enabled": "false"}
    passed_on = {key: value for key, value in settings.catalog.properties.items() if not key.startswith("py-")}
    return {
        "spark.sql.extensions": EXTENSIONS,
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{key}": value for key, value in {**options, **passed_on}.items()},
    }


def _catalog(settings: Settings) -> dict[str, str]:
    catalog = settings.catalog
    found: dict[str, str | None] = {}
    match catalog.type:
        case "memory":
            raise InvalidRequestError(
                "Spark cannot use a memory catalog: it exists in one process only",
                operation="spark options",
                remedy="use another catalog.type",
            )
        case "sql":
            found = {"catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog", "jdbc.schema-version": "V1"}
            found |= _jdbc(settings)
        case "rest":
            found = {"type": "rest", "uri": catalog.uri, "scan-planning-mode": catalog.scan_planning}
        case "glue":
            found = {"type": "glue", "glue.endpoint": catalog.uri, "client.region": settings.object_store.region}
    found["warehouse"] = warehouse_location(settings)
    return {key: value for key, value in found.items() if value is not None}


def _jdbc(settings: Settings) -> dict[str, str | None]:
    from icestream.table.sql_catalogs import jdbc_options  # noqa: PLC0415 - slow to import, and writing tasks do not need it

    return jdbc_options(catalog_properties(settings)["uri"], settings.catalog.timeout_seconds)


def _store(settings: Settings) -> dict[str, str]:
    store = settings.object_store
    known = catalog_properties(settings)
    options = {"io-impl": _FILE_IO[store.type]} if store.type in _FILE_IO else {}
    if store.type == "s3":
        names = ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.session-token")
        options |= {name: known[name] for name in names if name in known}
        options["s3.path-style-access"] = "true" if store.path_style else "false"
        if "s3.region" in known:
            options["client.region"] = known["s3.region"]
    elif store.type == "azblob":
        renamed = {
            "adls.account-name": "adls.auth.shared-key.account.name",
            "adls.account-key": "adls.auth.shared-key.account.key",
        }
        options |= {java: known[name] for name, java in renamed.items() if name in known}
    return options
