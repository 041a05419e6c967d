"""Statistics by tenant: at both doors, in the metrics, over Flight, HTTP and on the command line."""

import json
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from pydantic import SecretStr
from tests.integration.otlp.conftest import OpenDoors
from tests.otlp_requests import request, serialized

from icestream.app import Broker
from icestream.cli.main import cli
from icestream.client import Client
from icestream.config import AuthSettings, ServerSettings, Settings, TelemetrySettings
from icestream.model.callers import FULL_ACCESS, Caller
from icestream.model.errors import PermissionDeniedError, TopicNotFoundError
from icestream.storage.tenant_figures import OTHER_TENANT, TenantFigures
from icestream.telemetry import Signal

both_doors = pytest.mark.parametrize("door", ["grpc", "http"])
TOKENS = SecretStr("acme=acme-token-1 globex=globex-token-1 *=operators-token")


def figures(doors: object) -> TenantFigures:
    found = doors.metrics.tenants  # type: ignore[attr-defined]
    assert isinstance(found, TenantFigures)
    return found


@both_doors
def test_accepted_and_refused_requests_are_counted(open_doors: OpenDoors, door: str) -> None:
    doors = open_doors(auth=AuthSettings(tokens=TOKENS))
    body = serialized(Signal.LOGS, 3)
    acme = {"authorization": "Bearer acme-token-1"}
    for _ in range(2):
        assert doors.send(door, Signal.LOGS, body, **acme).ok
    assert doors.send(door, Signal.TRACES, serialized(Signal.TRACES, 7), **acme).ok
    assert not doors.send(door, Signal.LOGS, b"no protobuf", **acme).ok
    assert not doors.send(door, Signal.LOGS, body).ok
    assert not doors.send(door, Signal.LOGS, body, **acme, x_tenant_id="globex").ok
    found = figures(doors).one(FULL_ACCESS, "acme", operation="test")
    logs, traces = found.received["logs"], found.received["traces"]
    assert (logs.requests, logs.rows, logs.bytes) == (2, 6, 2 * len(body))
    assert logs.refused == {"invalid_message": 1}
    assert (traces.requests, traces.rows) == (1, 7)
    assert found.topics == 2
    other = figures(doors).one(FULL_ACCESS, OTHER_TENANT, operation="test").received["logs"]
    assert other.refused == {"unauthenticated": 1, "tenant_refused": 1}
    text = doors.metrics.render()[0].decode()
    assert 'icestream_tenant_received_rows_total{signal="logs",tenant="acme"} 6.0' in text
    assert 'icestream_tenant_refused_requests_total{code="invalid_message",signal="logs",tenant="acme"} 1.0' in text


@both_doors
def test_a_request_of_many_tenants_counts_for_each(open_doors: OpenDoors, door: str) -> None:
    settings = TelemetrySettings(tenant_attribute="tenant.id", auto_create_tenants=False, tenants="acme,globex")
    doors = open_doors(telemetry=settings)
    made = request(Signal.LOGS, 2, **{"tenant.id": "acme"})
    made.MergeFrom(request(Signal.LOGS, 6, **{"tenant.id": "globex"}))
    made.MergeFrom(request(Signal.LOGS, 4, **{"tenant.id": "stranger"}))
    body = made.SerializeToString()
    assert doors.send(door, Signal.LOGS, body).ok
    found = {one.tenant: one.received["logs"] for one in figures(doors).all()}
    assert {tenant: counts.rows for tenant, counts in found.items()} == {"acme": 2, "globex": 6, OTHER_TENANT: 0}
    assert found["globex"].bytes == len(body) // 2
    assert found[OTHER_TENANT].rejected_rows == 4


def test_series_are_bounded_and_the_rest_is_one(open_doors: OpenDoors) -> None:
    doors = open_doors(telemetry=TelemetrySettings(max_metric_tenants=2))
    for number in range(5):
        assert doors.send("http", Signal.LOGS, serialized(Signal.LOGS), x_tenant_id=f"t{number}").ok
    for _ in range(2):
        found = [
            sample
            for family in doors.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "icestream_tenant_received_rows_total"
        ]
        assert {sample.labels["tenant"]: sample.value for sample in found} == {"t0": 1, "t1": 1, OTHER_TENANT: 3}


def test_what_is_nobodys_own_is_no_namespaces(open_doors: OpenDoors) -> None:
    doors = open_doors(auth=AuthSettings(tokens=TOKENS))
    doors.storage.topics.create("_other/events")
    assert not doors.send("http", Signal.LOGS, serialized(Signal.LOGS)).ok
    assert {one.tenant: (one.topics, list(one.received)) for one in figures(doors).all()} == {
        "_other": (1, []),
        OTHER_TENANT: (0, ["logs"]),
    }


def test_a_tenants_token_sees_that_tenant_alone(open_doors: OpenDoors) -> None:
    doors = open_doors()
    for tenant in ("acme", "globex"):
        assert doors.send("http", Signal.LOGS, serialized(Signal.LOGS), x_tenant_id=tenant).ok
    tenants = figures(doors)
    assert [one.tenant for one in tenants.page(Caller("acme"), "", 10).tenants] == ["acme"]
    page = tenants.page(FULL_ACCESS, "", 1)
    assert ([one.tenant for one in page.tenants], page.next_after) == (["acme"], "acme")
    assert [one.tenant for one in tenants.page(FULL_ACCESS, "acme", 1).tenants] == ["globex"]
    with pytest.raises(PermissionDeniedError):
        tenants.one(Caller("acme"), "globex", operation="test")
    with pytest.raises(TopicNotFoundError):
        tenants.one(FULL_ACCESS, "nobody", operation="test")


def test_every_way_to_ask(tmp_path: Path) -> None:
    server = ServerSettings(flight_port=0, http_port=0, otlp_grpc_port=-1, otlp_http_port=0)
    settings = Settings(data_dir=tmp_path, server=server, auth=AuthSettings(tokens=TOKENS))
    acme, all_of_it = ({"authorization": f"Bearer {token}"} for token in ("acme-token-1", "operators-token"))
    with Broker(settings) as broker, httpx.Client(trust_env=False) as http:
        sent = http.post(
            f"{broker.doors['otlp_http']}/v1/logs",
            content=serialized(Signal.LOGS, 5),
            headers={"content-type": "application/x-protobuf", **acme},
        )
        assert sent.status_code == 200
        address = f"{broker.doors['http']}/api/v1/tenants"
        listed = http.get(address, headers=all_of_it).json()
        assert [one["tenant"] for one in listed["tenants"]] == ["acme"]
        own = http.get(f"{address}/acme", headers=acme).json()
        assert own["received"]["logs"]["rows"] == 5
        assert (own["topics"], own["pipeline"]["messages"]) == (1, 0)
        assert http.get(f"{address}/globex", headers=acme).status_code == 403
        assert http.get(f"{address}/nobody", headers=all_of_it).status_code == 404
        assert http.get(address).status_code == 401
        with Client(broker.doors["flight"], token="acme-token-1") as client:
            assert [one["tenant"] for one in client.tenant_stats()] == ["acme"]
            with pytest.raises(PermissionDeniedError):
                client.tenant_stats("globex")
        environ = {"ICESTREAM_BROKER": broker.doors["flight"], "ICESTREAM_TOKEN": "operators-token"}
        run = CliRunner()
        told = json.loads(run.invoke(cli, ["stats", "--by-tenant", "--json"], env=environ).output)
        assert told["tenants"][0]["received"]["logs"]["rows"] == 5
        shown = run.invoke(cli, ["stats", "--tenant", "acme"], env=environ)
        assert (shown.exit_code, "acme" in shown.output, "logs" in shown.output) == (0, True, True)
        missing = run.invoke(cli, ["stats", "--tenant", "nobody"], env=environ)
        assert (missing.exit_code, "no such tenant" in missing.output) == (1, True)
        assert run.invoke(cli, ["stats", "acme/logs", "--by-tenant"], env=environ).exit_code == 2
