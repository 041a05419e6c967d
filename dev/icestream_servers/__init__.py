"""Real servers for tests. Each starts on a free port of 127.0.0.1, keeps its files in a given directory, and cleans up.

    with S3Server(tmp_path / "s3") as s3, RestCatalogServer(tmp_path / "rest", warehouse=s3) as catalog:
        settings = Settings(**s3.settings(), **catalog.settings())

A server that is not installed raises `NotInstalledError` when it is started. `obtain` installs servers into the cache
folder, once. Servers can be stopped, killed, paused and started again on the same port and files, and `settings` can
name a proxy in front of them (`tests/http_proxy.py`).
"""

from icestream.broker_process import free_port
from icestream_servers.azurite import AzuriteServer
from icestream_servers.etcd import EtcdCluster, EtcdServer, EtcdTls, compact
from icestream_servers.gcs import GcsServer
from icestream_servers.moto import GlueServer
from icestream_servers.obtain import SERVERS, missing, obtain
from icestream_servers.postgres import PostgresServer
from icestream_servers.process import ServerProcess
from icestream_servers.rest_catalog import RestCatalogServer
from icestream_servers.s3 import S3Server
from icestream_servers.spark_cluster import SparkCluster

__all__ = [
    "SERVERS",
    "AzuriteServer",
    "EtcdCluster",
    "EtcdServer",
    "EtcdTls",
    "GcsServer",
    "GlueServer",
    "PostgresServer",
    "RestCatalogServer",
    "S3Server",
    "ServerProcess",
    "SparkCluster",
    "compact",
    "free_port",
    "missing",
    "obtain",
]
