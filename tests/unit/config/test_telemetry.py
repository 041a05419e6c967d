"""Telemetry settings that could only fail later are refused when they are read, by name."""

from collections.abc import Callable

import pytest

from icestream.config import TelemetrySettings, load_settings

Problems = Callable[..., list[str]]


def refusal(problems: Problems, key: str, value: str) -> str:
    (sentence,) = problems("", {f"ICESTREAM_TELEMETRY__{key.upper()}": value})
    assert f"{value!r}" in sentence
    assert key.upper() in sentence or f"telemetry.{key}" in sentence
    return sentence


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("x=Name", "gives 'x' the column 'Name', which is a column of telemetry: write x=column"),
        ("x=name", "'name', which is a column of telemetry"),
        ("x=TIME", "'TIME', which is a column of telemetry"),
        ("service.name", "'service_name', which is a column of telemetry"),
        ("resource:sum", "'sum', which is a column of telemetry"),
        ("x=_offset", "'_offset', which is reserved"),
        (
            "x=_Producer",
            "'_Producer', which is reserved, as are names that begin with _offset, _publish_time, _producer",
        ),
        ("x=_sequence_2", "'_sequence_2', which is reserved"),
        ("x=_file", "a column name of query engines"),
        ("http.route, x=HTTP_Route", "gives 'http.route' and 'x' the same column, 'http_route' and 'HTTP_Route'"),
    ],
)
def test_promoted_columns_must_be_free(problems: Problems, value: str, says: str) -> None:
    assert says in refusal(problems, "promoted_attributes", value)


def test_other_promoted_columns_are_taken() -> None:
    text = "http.route, resource:k8s.pod.name=pod, service.name=service, x=_private, y=offset"
    found = TelemetrySettings(promoted_attributes=text).promoted
    assert [attribute.column for attribute in found] == ["http_route", "pod", "service", "_private", "offset"]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("tenants", "acme, a/b", "names 'a/b', which is not a valid tenant: a tenant's name is 1 to 100 of"),
        ("tenants", "sys", "names 'sys', which is not a valid tenant"),
        ("default_tenant", "sys", "is not a valid tenant"),
        ("default_tenant", "_x", "begins with a letter or a digit; reserved are icestream,"),
        ("tenant_header", "X-Tenant", "it takes a header's name of up to 100 small letters"),
        ("dataset_header", "X-Dataset", "it takes a header's name of up to 100 small letters"),
        ("tenant_header", "authorization", "another meaning"),
        ("dataset_header", "content-type", "another meaning"),
        ("tenant_header", "x-tenant-bin", "reads as bytes"),
        ("tenant_header", "grpc-tenant", "gRPC reserves"),
        ("dataset_header", "x-tenant-id", "equals telemetry.tenant_header"),
    ],
)
def test_names_of_tenants_and_headers_must_be_usable(problems: Problems, key: str, value: str, says: str) -> None:
    assert says in refusal(problems, key, value)


def test_an_empty_default_tenant_is_none() -> None:
    assert load_settings(None, {}, environ={"ICESTREAM_TELEMETRY__DEFAULT_TENANT": ""}).telemetry.default_tenant is None
