"""Fixtures for every test."""

from tests.servers import (
    glue_server,
    iceberg_jars,
    postgres_server,
    rest_catalog_server,
    s3_server,
    spark_cluster,
)

__all__ = ["glue_server", "iceberg_jars", "postgres_server", "rest_catalog_server", "s3_server", "spark_cluster"]
