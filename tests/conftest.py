"""Fixtures for every test."""

from hypothesis import settings
from tests.servers import (
    azurite_server,
    etcd_cluster,
    etcd_server,
    gcs_server,
    glue_server,
    iceberg_jars,
    postgres_server,
    rest_catalog_server,
    s3_server,
    spark_cluster,
)

__all__ = [
    "azurite_server",
    "etcd_cluster",
    "etcd_server",
    "gcs_server",
    "glue_server",
    "iceberg_jars",
    "postgres_server",
    "rest_catalog_server",
    "s3_server",
    "spark_cluster",
]

# How long an example takes depends on the machine, and says nothing about the code.
settings.register_profile("icestream", deadline=None)
settings.load_profile("icestream")
