"""Who may send what, through either door: tokens, unknown tenants, limits, and requests of many tenants."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from pydantic import SecretStr
from tests.hostile_names import hostile_names
from tests.integration.otlp.conftest import PATIENCE_SECONDS, Doors, OpenDoors, opened
from tests.otlp_requests import add, request, serialized

from icestream.config import AuthSettings, TelemetrySettings
from icestream.model.messages import MESSAGE_SCHEMA
from icestream.server.otlp.grpc_door import METHODS
from icestream.telemetry import Signal, topic_schema

ACME, GLOBEX, GATEWAY = "acme-token-1", "globex-token-1", "gateway-token"
TOKENS = SecretStr(f"acme={ACME} globex={GLOBEX} *={GATEWAY}")
CODES = {
    "ok": {"grpc": 0, "http": 200},
    "unauthenticated": {"grpc": grpc.StatusCode.UNAUTHENTICATED.value[0], "http": 401},
    "refused": {"grpc": grpc.StatusCode.PERMISSION_DENIED.value[0], "http": 403},
    "invalid": {"grpc": grpc.StatusCode.INVALID_ARGUMENT.value[0], "http": 400},
    "limited": {"grpc": grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "http": 429},
}
both_doors = pytest.mark.parametrize("door", ["grpc", "http"])


def bearer(token: str, tenant: str | None = None) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} | ({"x_tenant_id": tenant} if tenant is not None else {})


@both_doors
class TestRefusals:
    """By tenant, door and signal: what each may do, and that a refusal leaves nothing behind."""

    @pytest.mark.parametrize(
        ("headers", "outcome", "tenant"),
        [
            (bearer(ACME), "ok", "acme"),
            (bearer(ACME, "acme"), "ok", "acme"),
            (bearer(ACME, "globex"), "refused", None),
            (bearer(ACME, "new"), "refused", None),
            (bearer(ACME, "../globex"), "refused", None),
            (bearer(GLOBEX), "ok", "globex"),
            (bearer(GLOBEX, "acme"), "refused", None),
            (bearer(GATEWAY), "ok", "default"),
            (bearer(GATEWAY, "acme"), "ok", "acme"),
            (bearer(GATEWAY, "new"), "refused", None),
            (bearer(GATEWAY, "a/b"), "invalid", None),
            ({}, "unauthenticated", None),
            ({"x_tenant_id": "acme"}, "unauthenticated", None),
            (bearer("wrong-token"), "unauthenticated", None),
            ({"authorization": f"Basic {ACME}"}, "unauthenticated", None),
            ({**bearer(ACME), "x_dataset_id": "../globex"}, "invalid", None),
        ],
    )
    def test_with_tokens(
        self, open_doors: OpenDoors, door: str, headers: dict[str, str], outcome: str, tenant: str | None
    ) -> None:
        doors = open_doors(auth=AuthSettings(tokens=TOKENS))
        for signal in Signal:
            found = doors.send(door, signal, serialized(signal), **headers)
            assert found.code == CODES[outcome][door]
            assert found.retry_seconds is None
        assert doors.topics() == ([f"{tenant}/{signal}" for signal in sorted(Signal)] if tenant else [])

    def test_unknown_tenants_without_tokens(self, open_doors: OpenDoors, door: str) -> None:
        doors = open_doors(telemetry=TelemetrySettings(auto_create_tenants=False, tenants="acme"))
        for tenant, outcome in (("acme", "ok"), ("default", "ok"), ("new", "refused"), ("..", "invalid")):
            body = serialized(Signal.LOGS)
            assert doors.send(door, Signal.LOGS, body, x_tenant_id=tenant).code == CODES[outcome][door]
        assert doors.topics() == ["acme/logs", "default/logs"]

    def test_a_tenant_that_has_datasets_alone_is_known(self, open_doors: OpenDoors, door: str) -> None:
        doors = open_doors(telemetry=TelemetrySettings(auto_create_tenants=False))
        body = serialized(Signal.LOGS)
        for topic in ("shop/catalogs", "shop/events", "acme/prod_traces"):
            doors.storage.topics.create(topic)
        assert doors.send(door, Signal.LOGS, body, x_tenant_id="acme").ok
        assert doors.send(door, Signal.LOGS, body, x_tenant_id="shop").code == CODES["refused"][door]
        doors.storage.topics.create("shop/prod_logs")
        known = doors.send(door, Signal.LOGS, body, x_tenant_id="shop", x_dataset_id="prod")
        assert known.code == CODES["invalid"][door]  # for the topic's columns, which makes no topic
        doors.storage.topics.delete("shop/prod_logs")
        assert doors.send(door, Signal.LOGS, body, x_tenant_id="shop").code == CODES["refused"][door]

    def test_a_plain_topic_of_that_name_is_left_alone(self, open_doors: OpenDoors, door: str) -> None:
        doors = open_doors()
        doors.storage.topics.create("default/traces")
        assert doors.send(door, Signal.TRACES, serialized(Signal.TRACES)).code == CODES["invalid"][door]
        assert doors.storage.topics.get("default/traces").body_schema.equals(MESSAGE_SCHEMA)


def test_over_http_too_a_request_that_names_two_tenants_is_refused(open_doors: OpenDoors) -> None:
    doors = open_doors()
    kind = ("content-type", "application/x-protobuf")
    for names, status in ((["acme", "globex"], 400), (["acme", "acme"], 200)):
        headers = [kind, *(("x-tenant-id", name) for name in names)]
        answer = doors.http.post("/v1/logs", content=serialized(Signal.LOGS), headers=headers)
        assert answer.status_code == status
    assert doors.topics() == ["acme/logs"]


class TestHeadersTwice:
    """Over gRPC, which hands over each of them."""

    def outcome(self, doors: Doors, *metadata: tuple[str, str]) -> int:
        method: Any = doors.channel.unary_unary(f"/{METHODS[Signal.LOGS]}/Export")
        try:
            method(serialized(Signal.LOGS), metadata=metadata, timeout=PATIENCE_SECONDS)
        except grpc.RpcError as error:
            return int(error.code().value[0])
        return 0

    @pytest.mark.parametrize("header", ["x-tenant-id", "x-dataset-id"])
    def test_two_names_are_refused_and_one_said_twice_is_taken(self, open_doors: OpenDoors, header: str) -> None:
        doors = open_doors()
        assert self.outcome(doors, (header, "acme"), (header, "globex")) == CODES["invalid"]["grpc"]
        assert doors.topics() == []
        assert self.outcome(doors, (header, "acme"), (header, "acme")) == 0
        assert doors.topics() == ["acme/logs" if header == "x-tenant-id" else "default/acme_logs"]

    def test_two_tokens_are_nobodys(self, open_doors: OpenDoors) -> None:
        doors = open_doors(auth=AuthSettings(tokens=TOKENS))
        tokens = [("authorization", f"Bearer {token}") for token in (ACME, GLOBEX)]
        assert self.outcome(doors, *tokens) == CODES["unauthenticated"]["grpc"]
        tenants = [("x-tenant-id", name) for name in ("new", "acme")]
        assert self.outcome(doors, tokens[0], *tenants) == CODES["refused"]["grpc"]
        assert doors.topics() == []


@both_doors
class TestLimits:
    @pytest.mark.parametrize("setting", ["max_requests_per_second", "max_bytes_per_second"])
    def test_a_tenant_that_sends_too_much_is_told_when_to_come_back(
        self, open_doors: OpenDoors, door: str, setting: str
    ) -> None:
        doors = open_doors(telemetry=TelemetrySettings.model_validate({setting: 1}))
        outcomes = [doors.send(door, Signal.LOGS, serialized(Signal.LOGS), x_tenant_id="acme") for _ in range(10)]
        refused = [outcome for outcome in outcomes if not outcome.ok]
        assert refused
        for outcome in refused:
            assert outcome.code == CODES["limited"][door]
            assert outcome.retry_seconds is not None
            assert outcome.retry_seconds > 0
            if door == "http":
                assert int(outcome.headers["retry-after"]) >= outcome.retry_seconds
        assert doors.send(door, Signal.LOGS, serialized(Signal.LOGS), x_tenant_id="globex").ok
        assert doors.rows("acme/logs").num_rows == len(outcomes) - len(refused)

    def test_a_tenant_has_so_many_topics(self, open_doors: OpenDoors, door: str) -> None:
        doors = open_doors(telemetry=TelemetrySettings(max_topics_per_tenant=2))
        doors.storage.topics.create("default/catalogs")  # is no telemetry
        found = [
            doors.send(door, Signal.LOGS, serialized(Signal.LOGS), x_dataset_id=dataset)
            for dataset in ("one", "two", "three", "one")
        ]
        assert [outcome.code for outcome in found] == [CODES[o][door] for o in ("ok", "ok", "limited", "ok")]
        assert found[2].retry_seconds is None
        assert "retry-after" not in found[2].headers
        assert doors.topics() == ["default/catalogs", "default/one_logs", "default/two_logs"]
        assert doors.send(door, Signal.LOGS, serialized(Signal.LOGS), x_tenant_id="other").ok


@both_doors
class TestManyTenantsInARequest:
    @pytest.fixture
    def mixed(self) -> bytes:
        """Two rows of acme, three of globex, one that names nobody, then one more of acme."""
        made = request(Signal.LOGS, 2, name="a", tenant="acme")
        add(made, Signal.LOGS, 3, name="g", tenant="globex")
        add(made, Signal.LOGS, 1, name="n")
        add(made, Signal.LOGS, 1, name="late", tenant="acme")
        data: bytes = made.SerializeToString()
        return data

    def test_each_gets_its_own_rows(self, open_doors: OpenDoors, door: str, mixed: bytes) -> None:
        doors = open_doors(telemetry=TelemetrySettings(tenant_attribute="tenant"))
        assert doors.send(door, Signal.LOGS, mixed, x_tenant_id="rest").ok
        found = {name: doors.rows(name)["body"].to_pylist() for name in doors.topics()}
        assert found == {
            "acme/logs": ["a 0", "a 1", "late 0"],
            "globex/logs": ["g 0", "g 1", "g 2"],
            "rest/logs": ["n 0"],
        }
        assert doors.storage.topics.get("acme/logs").body_schema.equals(topic_schema(Signal.LOGS))

    def test_rows_of_unknown_tenants_are_told_as_rejected(self, open_doors: OpenDoors, door: str, mixed: bytes) -> None:
        settings = TelemetrySettings(
            tenant_attribute="tenant", default_tenant=None, auto_create_tenants=False, tenants="acme"
        )
        doors = open_doors(telemetry=settings)
        outcome = doors.send(door, Signal.LOGS, mixed)
        assert outcome.ok
        partial = ExportLogsServiceResponse.FromString(outcome.body).partial_success
        assert partial.rejected_log_records == 4
        assert "no tenant 'globex'" in partial.error_message
        assert "names no tenant" in partial.error_message
        assert doors.topics() == ["acme/logs"]

    def test_a_tenant_without_room_does_not_stop_the_others(
        self, open_doors: OpenDoors, door: str, mixed: bytes
    ) -> None:
        doors = open_doors(telemetry=TelemetrySettings(tenant_attribute="tenant", max_topics_per_tenant=1))
        assert doors.send(door, Signal.TRACES, serialized(Signal.TRACES, tenant="acme")).ok
        outcome = doors.send(door, Signal.LOGS, mixed)
        partial = ExportLogsServiceResponse.FromString(outcome.body).partial_success
        assert (outcome.ok, partial.rejected_log_records) == (True, 3)
        assert doors.topics() == ["acme/traces", "default/logs", "globex/logs"]
        only_acme = serialized(Signal.LOGS, tenant="acme")
        assert doors.send(door, Signal.LOGS, only_acme).code == CODES["limited"][door]

    def test_a_tenants_own_token_does_not_write_elsewhere(self, open_doors: OpenDoors, door: str, mixed: bytes) -> None:
        doors = open_doors(telemetry=TelemetrySettings(tenant_attribute="tenant"), auth=AuthSettings(tokens=TOKENS))
        outcome = doors.send(door, Signal.LOGS, mixed, **bearer(ACME))
        partial = ExportLogsServiceResponse.FromString(outcome.body).partial_success
        assert (outcome.ok, partial.rejected_log_records) == (True, 3)
        assert doors.rows("acme/logs").num_rows == 4
        only_others = serialized(Signal.LOGS, tenant="globex")
        assert doors.send(door, Signal.LOGS, only_others, **bearer(ACME)).code == CODES["refused"][door]
        assert doors.topics() == ["acme/logs"]
        assert doors.send(door, Signal.LOGS, mixed, **bearer(GATEWAY)).ok
        assert doors.topics() == ["acme/logs", "default/logs", "globex/logs"]

    def test_a_thousand_hostile_names_make_nothing(self, open_doors: OpenDoors, door: str) -> None:
        doors = open_doors(telemetry=TelemetrySettings(tenant_attribute="tenant"))
        names = [name for name in dict.fromkeys(hostile_names()) if "\ud800" not in name]
        assert len(names) > 900
        while names:
            some, names = names[:90], names[90:]
            made = request(Signal.LOGS, 1, tenant="acme")
            for name in some:
                add(made, Signal.LOGS, 1, tenant=name)
            outcome = doors.send(door, Signal.LOGS, made.SerializeToString())
            partial = ExportLogsServiceResponse.FromString(outcome.body).partial_success
            assert (outcome.ok, partial.rejected_log_records) == (True, len(some))
            assert len(partial.error_message) < 2000
        assert doors.topics() == ["acme/logs"]

    def test_one_tenant_over_its_rate_stops_the_request_before_anything_is_stored(
        self, open_doors: OpenDoors, door: str, mixed: bytes
    ) -> None:
        doors = open_doors(telemetry=TelemetrySettings(tenant_attribute="tenant", max_bytes_per_second=1))
        assert doors.send(door, Signal.LOGS, serialized(Signal.LOGS, tenant="globex")).ok
        outcome = doors.send(door, Signal.LOGS, mixed)
        assert outcome.code == CODES["limited"][door]
        assert doors.topics() == ["globex/logs"]

    def test_too_many_tenants_are_refused(self, open_doors: OpenDoors, door: str) -> None:
        doors = open_doors(telemetry=TelemetrySettings(tenant_attribute="tenant"))
        made = request(Signal.LOGS, 0)
        for number in range(101):
            add(made, Signal.LOGS, 1, tenant=f"t{number}")
        assert doors.send(door, Signal.LOGS, made.SerializeToString()).code in (413, CODES["invalid"]["grpc"])
        assert doors.topics() == []


class TestTopics:
    def test_tables_are_partitioned_by_the_time_of_publishing_and_sorted(self, open_doors: OpenDoors) -> None:
        doors = open_doors(telemetry=TelemetrySettings(partition="hour"))
        for signal in Signal:
            assert doors.send("grpc", signal, serialized(signal)).ok
        records = [doors.storage.topics.get(f"default/{signal}").record for signal in Signal]
        assert {record.partition_by for record in records} == {("hour(_publish_time)",)}
        assert [record.sort_by[0] for record in records] == ["trace_id", "service_name", "service_name"]

    def test_attributes_promoted_later_become_columns_of_old_topics(self, tmp_path: Path) -> None:
        body = serialized(Signal.LOGS, region="north")
        with opened(tmp_path) as doors:
            assert doors.send("http", Signal.LOGS, body).ok
        with opened(tmp_path, telemetry=TelemetrySettings(promoted_attributes="resource:region")) as doors:
            assert doors.send("http", Signal.LOGS, body).ok
            assert doors.rows("default/logs")["region"].to_pylist() == [None, "north"]
        with opened(tmp_path) as doors:
            assert doors.send("http", Signal.LOGS, body).ok
            assert doors.rows("default/logs")["region"].to_pylist() == [None, "north", None]
