"""`icestream trace` and `icestream logs`, with what OpenTelemetry's own SDK sends."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, Tracer

from icestream.broker_process import BrokerProcess

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
PATIENCE_SECONDS = 120.0
HOSTILE = "evil\x1b[2J\nname"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With the doors for OpenTelemetry."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", otlp=True) as process:
        yield process
        assert process.terminate() == 0, process.log()


@dataclass
class Senders:
    """Programs that send as one tenant, each record and span in a request of its own, at once."""

    broker: BrokerProcess
    tenant: str
    providers: list[Any] = field(default_factory=list)

    def tracer(self, service: str) -> Tracer:
        provider = TracerProvider(resource=Resource({"service.name": service}), shutdown_on_exit=False)
        endpoint = f"{self.broker.doors['otlp_http']}/v1/traces"
        headers = {"x-tenant-id": self.tenant}
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=endpoint, headers=headers)))
        self.providers.append(provider)
        return provider.get_tracer("test")

    def log(self, service: str, *bodies: str, severity: SeverityNumber = SeverityNumber.INFO) -> None:
        """Records of now."""
        provider = LoggerProvider(resource=Resource({"service.name": service}), shutdown_on_exit=False)
        endpoint = f"{self.broker.doors['otlp_http']}/v1/logs"
        headers = {"x-tenant-id": self.tenant}
        provider.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter(endpoint=endpoint, headers=headers)))
        self.providers.append(provider)
        logger = provider.get_logger("test")
        for body in bodies:
            logger.emit(body=body, severity_number=severity, timestamp=time.time_ns(), attributes={"route": "/pay"})


@pytest.fixture
def senders(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Senders]:
    """Of a tenant of the test's own."""
    made = Senders(broker, request.node.name.replace("_", "-")[:90].partition("[")[0])
    yield made
    for provider in made.providers:
        provider.shutdown()


@pytest.fixture
def trace_id(senders: Senders) -> str:
    """A checkout: four spans of three services, one failed, with two log records."""
    shop, cart, db = map(senders.tracer, ("shop", "cart", "db"))
    with shop.start_as_current_span("GET /checkout", kind=SpanKind.SERVER) as root:
        with cart.start_as_current_span("reserve", kind=SpanKind.CLIENT, attributes={"items": 3}):
            senders.log("cart", "stock is low", severity=SeverityNumber.WARN)
            with pytest.raises(ValueError), db.start_as_current_span(HOSTILE):  # noqa: PT011 - our own
                raise ValueError("no rows")
        with shop.start_as_current_span("render"):
            senders.log("shop", "rendered")
    return format(root.get_span_context().trace_id, "032x")


EXAMPLE = Path(__file__).parents[3] / "examples" / "send_telemetry.py"


def lines_of(result: "subprocess.CompletedProcess[bytes]") -> list[str]:
    assert result.returncode == 0, result.stderr
    return result.stdout.decode().splitlines()


class TestTrace:
    def test_it_is_a_tree_with_bars(self, icestream: Run, senders: Senders, trace_id: str) -> None:
        lines = lines_of(icestream("trace", trace_id, "--tenant", senders.tenant))
        assert lines[0] == f"trace {trace_id}"
        assert lines[1].endswith(" 4 spans, 1 error")
        assert lines[2] == "services: shop, cart, db"
        assert [line.partition("  ")[0] for line in lines[4:6]] == [
            "shop: GET /checkout (server)",
            "├─ cart: reserve (client)",
        ]
        assert lines[6].startswith(r"│  └─ ✗ db: evil\x1b[2J\nname (internal)")
        assert lines[7].startswith("└─ shop: render (internal)")
        assert "█" in lines[4]
        assert all(line.isprintable() for line in lines)

    def test_events_and_log_records_stand_below_their_spans(
        self, icestream: Run, senders: Senders, trace_id: str
    ) -> None:
        header = f"00-{trace_id.upper()}-0102030405060708-01"
        lines = lines_of(icestream("trace", header, "--tenant", senders.tenant, "--events", "--logs", "--width", "160"))
        starts = [line.strip(" │├└─").partition("  ")[0] for line in lines[4:]]
        assert starts[:4] == [
            "shop: GET /checkout (server)",
            "cart: reserve (client)",
            "· WARN stock is low",
            starts[3],
        ]
        assert starts[4].startswith("· exception exception.type=ValueError")
        assert starts[5:] == ["· status: ValueError: no rows", "shop: render (internal)", "· INFO rendered"]

    def test_the_example_prints_the_id_of_a_trace_that_is_there(self, icestream: Run, senders: Senders) -> None:
        environ = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": senders.broker.doors["otlp_grpc"]}
        command = [sys.executable, str(EXAMPLE), senders.tenant]
        sent = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        lines = lines_of(icestream("trace", sent.stdout.strip(), "--tenant", senders.tenant, "--logs"))
        assert lines[1].endswith(" 5 spans, 1 error")
        assert any("WARN timeout, attempt 1" in line for line in lines)

    def test_the_example_fails_when_the_broker_refuses_what_it_sends(self, senders: Senders) -> None:
        environ = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": senders.broker.doors["otlp_grpc"]}
        command = [sys.executable, str(EXAMPLE), "_reserved"]
        sent = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert (sent.returncode, sent.stdout) == (1, "")
        assert "'_reserved' is a reserved name" in sent.stderr
        assert sent.stderr.endswith("log records and spans were not accepted, for the reason above\n")

    def test_json_is_the_tree(self, icestream: Run, senders: Senders, trace_id: str) -> None:
        (line,) = lines_of(icestream("trace", trace_id, "--tenant", senders.tenant, "--json", "--logs"))
        found = json.loads(line)
        (root,) = found["spans"]
        cart, render = root["children"]
        assert (found["span_count"], root["name"], cart["attributes"]) == (4, "GET /checkout", {"items": "3"})
        assert (cart["children"][0]["name"], cart["children"][0]["status"]) == (HOSTILE, "error")
        assert [record["body"] for record in render["logs"]] == ["rendered"]

    def test_colours_are_for_terminals(self, environ: dict[str, str], senders: Senders, trace_id: str) -> None:
        command = [sys.executable, "-m", "icestream.cli", "trace", trace_id, "--tenant", senders.tenant]

        def on_a_terminal(**more: str) -> bytes:
            ours, theirs = pty.openpty()
            with subprocess.Popen(command, stdout=theirs, env=environ | {"TERM": "xterm"} | more) as process:
                os.close(theirs)
                received = b""
                while data := _read(ours):
                    received += data
            os.close(ours)
            assert process.returncode == 0
            return received

        assert b"\x1b[31m" in on_a_terminal()
        assert b"\x1b" not in on_a_terminal(NO_COLOR="1")

    def test_what_is_not_there_is_one_sentence(self, icestream: Run, senders: Senders, trace_id: str) -> None:
        for arguments, sentence in (
            (("f" * 32, "--tenant", senders.tenant), f"there is no span of trace {'f' * 32} [{senders.tenant}/traces]"),
            ((trace_id, "--tenant", senders.tenant, "--committed"), "or use --fresh"),
            ((trace_id, "--tenant", "nobody"), "there is no such topic [nobody/traces]; check the tenant's name"),
            ((trace_id, "--tenant", senders.tenant, "--dataset", "x"), f"no such topic [{senders.tenant}/x_traces]"),
        ):
            result = icestream("trace", *arguments)
            assert (result.returncode, result.stdout) == (1, b"")
            assert sentence in result.stderr.decode()
            assert len(result.stderr.splitlines()) == 1

    def test_a_tenant_without_logs_has_traces(self, icestream: Run, senders: Senders) -> None:
        with senders.tracer("shop").start_as_current_span("alone") as span:
            found = format(span.get_span_context().trace_id, "032x")
        result = icestream("trace", found, "--tenant", senders.tenant, "--logs")
        assert "shop: alone" in lines_of(result)[-1]
        assert b"no log records" in result.stderr

    def test_more_spans_than_asked_for_are_said_to_be_missing(
        self, icestream: Run, senders: Senders, trace_id: str
    ) -> None:
        result = icestream("trace", trace_id, "--tenant", senders.tenant, "--max", "2")
        assert result.stderr == b"only the first 2 spans; --max reads more\n"
        assert " 2 spans, " in lines_of(result)[1]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how a terminal ends
        return b""


@contextmanager
def following(environ: dict[str, str], *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "icestream.cli", "logs", "--follow", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as process:
        patience = threading.Timer(PATIENCE_SECONDS, process.kill)  # a line that never comes ends the wait for it
        patience.start()
        try:
            yield process
        finally:
            patience.cancel()
            if process.poll() is None:
                process.kill()


def next_bodies(process: "subprocess.Popen[bytes]", count: int) -> list[str]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline())["body"] for _ in range(count)]


class TestLogs:
    def test_the_newest_come_oldest_first(self, icestream: Run, senders: Senders) -> None:
        senders.log("shop", "one", "two", HOSTILE)
        senders.log("o'brien", "four", severity=SeverityNumber.ERROR)
        lines = lines_of(icestream("logs", "--tenant", senders.tenant))
        assert [line.split(" ", 1)[1] for line in lines] == [
            "INFO  shop one route=/pay",
            "INFO  shop two route=/pay",
            r"INFO  shop evil\x1b[2J\nname route=/pay",
            "ERROR o'brien four route=/pay",
        ]
        for arguments, bodies in (
            (("--max", "2"), [HOSTILE, "four"]),
            (("--service", "o'brien"), ["four"]),
            (("--service", "' OR '1'='1"), []),
            (("--severity", "warn"), ["four"]),
            (("--grep", "(?i)^T.*O$"), ["two"]),
            (("--since", "2020-01-01", "--until", "0s"), ["one", "two", HOSTILE, "four"]),
            (("--until", "30m"), []),
            (("--since", "all", "--trace", "f" * 32), []),
        ):
            result = icestream("logs", "--tenant", senders.tenant, "--json", *arguments)
            assert [json.loads(line)["body"] for line in lines_of(result)] == bodies, arguments

    def test_records_of_a_trace_are_found_by_its_id(self, icestream: Run, senders: Senders, trace_id: str) -> None:
        senders.log("shop", "of no trace")
        found = lines_of(icestream("logs", "--tenant", senders.tenant, "--trace", trace_id, "--json"))
        assert [json.loads(line)["body"] for line in found] == ["stock is low", "rendered"]
        assert {json.loads(line)["trace_id"] for line in found} == {trace_id}

    def test_nothing_found_says_where_was_looked(self, icestream: Run, senders: Senders) -> None:
        senders.log("shop", "one")
        result = icestream("logs", "--tenant", senders.tenant, "--service", "none")
        assert (result.returncode, result.stdout) == (0, b"")
        assert b"no such records since 20" in result.stderr
        missing = icestream("logs", "--tenant", "nobody")
        assert (missing.returncode, len(missing.stderr.splitlines())) == (1, 1)
        assert b"there is no such topic [nobody/logs]" in missing.stderr

    def test_following_has_no_gap_and_no_repetition(self, senders: Senders, environ: dict[str, str]) -> None:
        senders.log("shop", "other", *(f"keep {number}" for number in range(5)))
        arguments = ("--tenant", senders.tenant, "--json", "--service", "shop", "--grep", "keep", "--max", "3")
        with following(environ, *arguments) as process:
            assert next_bodies(process, 3) == ["keep 2", "keep 3", "keep 4"]
            senders.log("cart", "keep out")
            senders.log("shop", "other", "keep 5", "other", "keep 6")
            assert next_bodies(process, 2) == ["keep 5", "keep 6"]
            process.send_signal(signal.SIGINT)
            assert process.wait() == 0
            assert process.stderr is not None
            assert (process.stdout.read() if process.stdout else b"", process.stderr.read()) == (b"", b"")

    def test_records_that_come_while_following_begins_are_there_once(
        self, senders: Senders, environ: dict[str, str]
    ) -> None:
        count = 400
        half = threading.Event()

        def send() -> None:
            senders.log("shop", *(f"record {number}" for number in range(count // 2)))
            half.set()
            senders.log("shop", *(f"record {number}" for number in range(count // 2, count)))

        sending = threading.Thread(target=send)
        sending.start()
        assert half.wait(PATIENCE_SECONDS)
        with following(environ, "--tenant", senders.tenant, "--json", "--max", str(count)) as process:
            assert process.stdout is not None
            offsets = [json.loads(process.stdout.readline())["offset"] for _ in range(count)]
            assert sorted(offsets) == list(range(count))
        sending.join()

    def test_following_ends_quietly_when_nobody_reads(self, senders: Senders, environ: dict[str, str]) -> None:
        senders.log("shop", "one")
        with following(environ, "--tenant", senders.tenant) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.wait() == 0
            assert process.stderr.read() == b""


def test_following_goes_on_behind_a_broker_that_was_killed(tmp_path: Path, environ: dict[str, str]) -> None:
    with BrokerProcess(tmp_path / "data", otlp=True) as broker:
        senders = Senders(broker, "acme")
        senders.log("shop", "before")
        away = environ | {"ICESTREAM_BROKER": broker.flight}
        with following(away, "--tenant", "acme", "--json") as process:
            assert process.stderr is not None
            assert next_bodies(process, 1) == ["before"]
            senders.log("shop", "still there")
            assert next_bodies(process, 1) == ["still there"]
            broker.kill()
            assert b"cannot be reached" in process.stderr.readline()
            broker.start()
            senders.log("shop", "after", "last")
            assert next_bodies(process, 2) == ["after", "last"]
        for provider in senders.providers:
            provider.shutdown()
