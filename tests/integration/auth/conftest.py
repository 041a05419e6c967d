"""A broker that gives out tokens, with all its doors, and the same topics in two namespaces."""

import dataclasses
from collections.abc import Iterator

import httpx
import pytest
from pydantic import SecretStr

from icestream import Client
from icestream.app import Broker
from icestream.config import AuthSettings, Settings

ACME, GLOBEX, ROOT, UNKNOWN = "acme-token-1", "globex-token-1", "root-token-1", "unknown-token-1"
TOKENS = AuthSettings(tokens=SecretStr(f"acme={ACME} globex={GLOBEX} *={ROOT}"))
DOORS = {"flight_port": 0, "http_port": 0, "otlp_grpc_port": 0, "otlp_http_port": 0}
PATIENCE_SECONDS = 60.0
OWN, FOREIGN, NOWHERE = "acme/events", "globex/events", "globex/nowhere"
"""As acme sees it."""


@dataclasses.dataclass
class Guarded:
    broker: Broker
    root: Client
    acme: Client

    def client(self, token: str | None) -> Client:
        """To be closed by who asks; an empty token is none, whatever the environment says."""
        return Client(self.broker.doors["flight"], token=token or "")

    def http(self, token: str | None = None, door: str = "http") -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(
            base_url=self.broker.doors[door], headers=headers, timeout=PATIENCE_SECONDS, trust_env=False
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    settings = Settings.model_validate({"data_dir": tmp_path_factory.mktemp("auth"), "auth": TOKENS, "server": DOORS})
    with (
        Broker(settings) as broker,
        Client(broker.doors["flight"], token=ROOT) as root,
        Client(broker.doors["flight"], token=ACME) as acme,
    ):
        for topic in (OWN, FOREIGN):
            with root.producer(topic) as producer:
                for number in range(3):
                    producer.send(f"{topic} {number}".encode()).result()
            root.create_subscription(topic, "s", type="shared")
        yield Guarded(broker, root, acme)
