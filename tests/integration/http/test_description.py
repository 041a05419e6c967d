"""The OpenAPI document says what the routes do; the page says what the document says."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route
from tests.integration.http.conftest import Running

from icestream.server.http.errors import STATUS

DOCS = Path(__file__).parents[3] / "docs" / "http.md"


@pytest.fixture
def document(http: Running) -> dict[str, Any]:
    answer: dict[str, Any] = http.client.get("/api/openapi.json").json()
    return answer


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_route_is_described_and_every_description_has_a_route(http: Running, document: dict[str, Any]) -> None:
    routes = [route for route in http.door._app.routes if isinstance(route, Route)]
    routed = {(route.path, method.lower()) for route in routes for method in (route.methods or ()) if method != "HEAD"}
    assert routed == {(path, method) for path, method, _ in operations(document)}


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    found = [node["$ref"] for node in walk(document) if "$ref" in node]
    assert found
    for reference in found:
        place: Any = document
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


def test_the_document_is_complete_openapi(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert document["info"] == {**document["info"], "title": "icestream", "version": "1.2.3"}
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in document["tags"]}
    for path, method, operation in operations(document):
        assert set(operation["tags"]) <= tags
        assert operation["summary"]
        in_path = {entry["name"] for entry in operation["parameters"] if entry["in"] == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", path))
        assert all(entry["required"] for entry in operation["parameters"] if entry["in"] == "path")
        for entry in operation["parameters"]:
            assert entry["schema"]
        assert {"default"} < set(operation["responses"])
        assert all(answer["description"] for answer in operation["responses"].values())
        assert ("requestBody" in operation) == (method in {"post", "patch", "put"})


def test_every_status_of_an_error_is_described_somewhere(document: dict[str, Any]) -> None:
    described = {status for _, _, operation in operations(document) for status in operation["responses"]}
    router_and_server = {405, 504}  # answered before an operation is found; by no operation yet
    assert {str(status) for status in STATUS.values() if status not in router_and_server} <= described


def test_the_page_shows_every_operation_and_schema(http: Running, document: dict[str, Any]) -> None:
    page = http.client.get("/api/docs").text
    for path, _, operation in operations(document):
        assert f'id="{operation["operationId"]}"' in page
        assert path in page
    for name in document["components"]["schemas"]:
        assert f'id="schema-{name}"' in page


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in {"meta", "br"}:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"href", "src"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_sound_and_needs_nothing_but_itself(http: Running) -> None:
    answer = http.client.get("/api/docs")
    tags = Tags()
    tags.feed(answer.text)
    assert not tags.open
    assert tags.seen.isdisjoint({"script", "link", "img", "iframe"})
    assert all(link.startswith(("#", "/api/")) for link in tags.links)
    assert "url(" not in answer.text
    assert "@import" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_the_handwritten_page_names_every_route_and_parameter(document: dict[str, Any]) -> None:
    text = DOCS.read_text(encoding="utf-8")
    for path, method, operation in operations(document):
        assert f"`{method.upper()} {path}`" in text
        for entry in operation["parameters"]:
            assert entry["in"] == "path" or f"`{entry['name']}`" in text
    for code, status in STATUS.items():
        assert f"`{code}`" in text
        assert f"| {status} |" in text
