import subprocess
import sys
from typing import Any

import pytest

from icestream.config import Settings, load_settings
from icestream.model.errors import InvalidRequestError
from icestream.table import spark_catalog_options


def _options(**flags: Any) -> dict[str, str]:
    settings = load_settings(overrides={key.replace("__", "."): value for key, value in flags.items()}, environ={})
    name = f"spark.sql.catalog.{settings.catalog.name}"
    options = spark_catalog_options(settings)
    assert options[name] == "org.apache.iceberg.spark.SparkCatalog"
    assert options["spark.sql.extensions"].endswith("IcebergSparkSessionExtensions")
    return {key.removeprefix(f"{name}."): value for key, value in options.items() if key.startswith(f"{name}.")}


def test_the_embedded_catalog_is_shared_through_jdbc() -> None:
    options = _options(data_dir="/srv/ice")
    assert options == {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": "jdbc:sqlite:/srv/ice/catalog.db?busy_timeout=30000",
        "jdbc.schema-version": "V1",
        "warehouse": "file:///srv/ice/warehouse",
        "cache-enabled": "false",
    }


def test_postgres_gets_user_and_password_beside_the_address() -> None:
    options = _options(
        catalog__uri="postgresql+psycopg2://me:p%40ss@db:5433/lake", catalog__warehouse="s3://b", catalog__name="prod"
    )
    assert options["uri"] == "jdbc:postgresql://db:5433/lake"
    assert (options["jdbc.user"], options["jdbc.password"]) == ("me", "p@ss")


def test_rest_on_s3() -> None:
    options = _options(
        catalog__type="rest",
        catalog__uri="http://catalog:8181",
        catalog__warehouse="main",
        catalog__scan_planning="server",
        object_store__type="s3",
        object_store__endpoint="http://minio:9000",
        object_store__path_style=True,
        object_store__access_key="key",
        object_store__secret_key="secret",
    )
    assert options == {
        "type": "rest",
        "uri": "http://catalog:8181",
        "warehouse": "main",
        "scan-planning-mode": "server",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": "http://minio:9000",
        "s3.path-style-access": "true",
        "s3.access-key-id": "key",
        "s3.secret-access-key": "secret",
        "client.region": "us-east-1",
        "cache-enabled": "false",
    }


def test_glue_finds_its_warehouse_in_the_bucket() -> None:
    options = _options(
        catalog__type="glue", object_store__type="s3", object_store__bucket="lake", object_store__region="eu-west-1"
    )
    assert options["type"] == "glue"
    assert options["warehouse"] == "s3://lake"
    assert options["client.region"] == "eu-west-1"
    assert options["s3.path-style-access"] == "false"


def test_properties_of_the_user_are_passed_on_except_those_for_python() -> None:
    settings = Settings.model_validate({"catalog": {"properties": {"py-io-impl": "a.B", "s3.endpoint": "http://own"}}})
    options = spark_catalog_options(settings)
    assert options["spark.sql.catalog.icestream.s3.endpoint"] == "http://own"
    assert not [key for key in options if "py-io-impl" in key]


def test_a_memory_catalog_cannot_be_shared() -> None:
    with pytest.raises(InvalidRequestError, match="memory catalog"):
        _options(catalog__type="memory")


def test_the_package_does_not_import_spark() -> None:
    code = "import sys, icestream.table; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
