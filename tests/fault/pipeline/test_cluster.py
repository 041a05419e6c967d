"""A real cluster whose workers share nothing but the network, the catalog and the object store."""

import random

from tests.fault.pipeline import processes
from tests.fault.pipeline.conftest import MakeSite
from tests.fault.pipeline.harness import Site

from icestream.broker_process import BrokerProcess
from icestream_servers import RestCatalogServer, S3Server, SparkCluster


def test_executors_and_workers_of_a_cluster_that_are_killed_lose_and_double_nothing(
    make_site: MakeSite,
    broker: BrokerProcess,
    spark_cluster: SparkCluster,
    rest_catalog_server: RestCatalogServer,
    s3_server: S3Server,
) -> None:
    rng = random.Random(1)
    site = make_site(broker, {**rest_catalog_server.settings(), **s3_server.settings()})
    topics = ("first", "second")
    site.publish("first")
    first, second = spark_cluster.workers
    with site.process(writer={"flush_interval_ms": 50}, **spark_cluster.settings()) as pipeline:
        site.wait_until_in_tables("first")
        assert all(worker.executor_pids() for worker in spark_cluster.workers), "both take part"
        with site.publishing(*topics):
            wait_for_commits(site)
            processes.kill(rng.choice(first.executor_pids()))
            wait_for_commits(site)
            second.kill()
            wait_for_commits(site)
            second.start()
            wait_for_commits(site)
        site.wait_until_in_tables(*topics)
        assert pipeline.state.starts == 1, "the driver has lived through all of it"
    site.check(*topics)


def wait_for_commits(site: Site) -> None:
    """Some messages are acknowledged, and in their table."""
    site.oracle.wait_for_acks(200)
    site.wait_until_in_tables("first")
