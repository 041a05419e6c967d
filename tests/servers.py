"""Real servers for tests, one of each a run: fixtures that pytest finds through `tests/conftest.py`.

A server that cannot run here is a failure with CI=true; elsewhere its tests are skipped with the reason.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream.pipeline.spark.jars import JARS, ensure_jars
from icestream_servers import (
    AzuriteServer,
    EtcdCluster,
    EtcdServer,
    GcsServer,
    GlueServer,
    PostgresServer,
    RestCatalogServer,
    S3Server,
    SparkCluster,
    missing,
)


def require(name: str) -> None:
    """Go on only if this machine has what a server needs; `dev/ensure_servers.py` obtains it."""
    reason = missing(name)
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name}: {reason}")
    pytest.skip(f"{name}: {reason}; dev/ensure_servers.py obtains what can be had")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    require("s3")
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    require("gcs")
    with GcsServer(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzuriteServer]:
    require("azurite")
    with AzuriteServer(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog_server(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[RestCatalogServer]:
    """Its tables are on the S3 server."""
    require("rest-catalog")
    with RestCatalogServer(tmp_path_factory.mktemp("rest-catalog"), warehouse=s3_server) as server:
        yield server


@pytest.fixture(scope="session")
def glue_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlueServer]:
    require("glue")
    with GlueServer(tmp_path_factory.mktemp("glue")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    require("postgres")
    with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One member, shared: tests use a prefix of their own."""
    require("etcd")
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="session")
def etcd_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Three members, shared: a test that kills one starts it again."""
    require("etcd")
    with EtcdCluster(tmp_path_factory.mktemp("etcd-cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A Standalone master and two workers with one core each."""
    require("spark")
    with SparkCluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def iceberg_jars() -> dict[str, Path]:
    """Iceberg's jars for Spark, by name."""
    require("iceberg-jars")
    return dict(zip(JARS, ensure_jars(JARS), strict=True))
