"""Fixtures for every test."""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings
from tests.broker_template import BrokerTemplate
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

from icestream.broker_process import BrokerProcess

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


@pytest.fixture(scope="session", autouse=True)
def broker_template(request: pytest.FixtureRequest) -> Iterator[None]:
    """Brokers are forks of one process, except where whole processes are tested as users start them."""
    if all("e2e" in item.path.parts for item in request.session.items):
        yield
        return
    template = BrokerTemplate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerProcess, "spawn", staticmethod(template.spawn))
        yield
    template.close()


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    """A command that runs in the tests' own process configures logging, which is not to outlive its test."""
    yield
    structlog.reset_defaults()
