from collections.abc import Iterator
from itertools import count

import pytest
from tests.fault.metadata.lossy import LossyProxy

from icestream.metadata import MetadataStore
from icestream.metadata.etcd.store import EtcdMetadataStore
from icestream_servers import EtcdServer

PREFIXES = (f"/fault-{n}" for n in count(1))


@pytest.fixture
def prefix() -> str:
    return next(PREFIXES)


@pytest.fixture
def proxy(etcd_server: EtcdServer) -> Iterator[LossyProxy]:
    with LossyProxy(etcd_server.url) as proxy:
        yield proxy


@pytest.fixture
def store(etcd_server: EtcdServer, proxy: LossyProxy, prefix: str) -> Iterator[MetadataStore]:
    """Reaches etcd through the proxy."""
    with EtcdMetadataStore(etcd_server.options(endpoints=(proxy.url,), prefix=prefix)) as store:
        yield store


@pytest.fixture
def direct(etcd_server: EtcdServer, prefix: str) -> Iterator[MetadataStore]:
    """The same keys, without the proxy."""
    with EtcdMetadataStore(etcd_server.options(prefix=prefix)) as store:
        yield store
