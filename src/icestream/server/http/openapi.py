"""The OpenAPI 3.1 document, made from the operations and the structs that they name; and the documentation page."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from html import escape
from http import HTTPStatus
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from icestream.model.names import MAX_PART_LENGTH
from icestream.server.access import OPERATIONS, Access
from icestream.server.http.errors import json_response
from icestream.server.http.models import ErrorResponse
from icestream.server.http.requests import JSON, Content, HttpOperation, ResponseSpec

_PARAMETER = re.compile(r"\{(\w+)\}")
_TEXT = (
    "Topics, messages and figures of an icestream broker. Every error is the same JSON object and says what to do. "
    "Unknown fields and parameters are refused. If the broker has tokens (`auth.tokens`), most calls "
    "need one."
)
_TOKENS = {"token": {"type": "http", "scheme": "bearer"}}


def openapi_document(operations: Sequence[HttpOperation], version: str) -> dict[str, Any]:
    schemas = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    for operation in operations:
        if operation.query is not None:
            schemas.pop(operation.query.__name__, None)  # shown as parameters
    return {
        "openapi": "3.1.0",
        "info": {"title": "icestream", "version": version, "description": _TEXT},
        "servers": [{"url": "/"}],
        "tags": [{"name": group} for group in dict.fromkeys(operation.group for operation in operations)],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _TOKENS},
    }


def _operation(operation: HttpOperation, schemas: dict[str, Any]) -> dict[str, Any]:
    is_open = OPERATIONS.get(operation.name) is Access.OPEN
    errors = sorted({*operation.errors, *(() if is_open else (401, 403))})
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.group],
        "summary": operation.text,
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation.query, schemas)],
        "responses": {
            **{str(status): _response(response) for status, response in operation.responses.items()},
            **{
                str(status): _response(ResponseSpec(HTTPStatus(status).phrase, {JSON: ErrorResponse}))
                for status in errors
            },
            "default": _response(ResponseSpec("Any other error", {JSON: ErrorResponse})),
        },
    }
    if not is_open:
        described["security"] = [{name: []} for name in _TOKENS]
    if operation.details:
        described["description"] = operation.details
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.body)}
    return described


def _response(response: ResponseSpec) -> dict[str, Any]:
    described: dict[str, Any] = {"description": response.text}
    if response.content:
        described["content"] = _content(response.content)
    if response.headers:
        described["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in response.headers.items()
        }
    return described


def _content(content: Content) -> dict[str, Any]:
    return {
        media_type: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}} if model is not None else {}
        for media_type, model in content.items()
    }


def _path_parameters(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1, "maxLength": MAX_PART_LENGTH}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in _PARAMETER.findall(path)]


def _query_parameters(kind: type[Struct] | None, schemas: dict[str, Any]) -> Iterable[dict[str, Any]]:
    if kind is None:
        return
    document = schemas[kind.__name__]
    for name, schema in document["properties"].items():
        inner = {key: value for key, value in schema.items() if key != "description"}
        text = schema.get("description", "")
        required = name in document.get("required", ())
        yield {"name": name, "in": "query", "required": required, "description": text, "schema": inner}


def _schemas(operations: Sequence[HttpOperation]) -> dict[str, Any]:
    contents = [content for operation in operations for content in _contents(operation)]
    kinds: set[type[Struct]] = {kind for content in contents for kind in content.values() if kind is not None}
    kinds |= {operation.query for operation in operations if operation.query is not None} | {ErrorResponse}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    _, found = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    schemas: dict[str, Any] = _without_null_defaults(found)
    return schemas


def _contents(operation: HttpOperation) -> Iterable[Content]:
    yield operation.body or {}
    for response in operation.responses.values():
        yield response.content


def _without_null_defaults(schema: Any) -> Any:
    """An optional field's default is to be absent; saying `null` would be wrong where null is refused."""
    if isinstance(schema, dict):
        return {
            key: _without_null_defaults(value)
            for key, value in schema.items()
            if not (key == "default" and value is None)
        }
    if isinstance(schema, list):
        return [_without_null_defaults(value) for value in schema]
    return schema


# The documentation page. It needs nothing but itself: no script, no font, no other host.


_CODE = re.compile(r"`([^`]+)`")
_STYLE = (files(__package__) / "docs_page.css").read_text("utf-8")


def docs_page(document: dict[str, Any]) -> str:
    return "\n".join(_page(document))


def _page(document: dict[str, Any]) -> Iterator[str]:
    info, schemas = document["info"], document["components"]["schemas"]
    groups = [tag["name"] for tag in document["tags"]]
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style></head><body>"
    yield f"<header><h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>"
    yield f'<p>{_text(info["description"])} <a href="/api/openapi.json">OpenAPI document</a></p></header>'
    yield "<main>"
    for group in groups:
        yield f"<h2>{escape(group)}</h2>"
        for method, path, operation in operations:
            if group in operation["tags"]:
                yield from _operation_html(method, path, operation)
    yield "<h2>schemas</h2>"
    for name, schema in sorted(schemas.items()):
        yield from _schema(name, schema)
    yield "</main></body></html>"


def _operation_html(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f'<details id="{escape(operation["operationId"])}"><summary>'
    yield f'<b class="{escape(method)}">{escape(method.upper())}</b> <code>{escape(path)}</code>'
    yield f"<span>{_text(operation['summary'])}</span></summary>"
    if "description" in operation:
        yield f"<p>{_text(operation['description'])}</p>"
    if operation["parameters"]:
        yield "<h4>parameters</h4>"
        yield from _table(
            (parameter["name"], _type(parameter["schema"]), _notes(parameter["schema"], parameter.get("description")))
            for parameter in operation["parameters"]
        )
    if "requestBody" in operation:
        yield "<h4>body</h4>"
        yield from _table(_contents_html(operation["requestBody"]["content"]))
    yield "<h4>responses</h4>"
    yield from _table(
        (
            status,
            " ".join(kind for _, kind, _ in _contents_html(response.get("content", {}))),
            _text(response["description"]),
        )
        for status, response in operation["responses"].items()
    )
    yield "</details>"


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f'<details id="schema-{escape(name)}"><summary><code>{escape(name)}</code></summary>'
    if "description" in schema:
        yield f"<p>{_text(schema['description'])}</p>"
    if "enum" in schema:
        yield f"<p>{_type(schema)}</p>"
    required = schema.get("required", ())
    yield from _table(
        (field, _type(inner) + ("" if field in required else " <i>optional</i>"), _notes(inner, None))
        for field, inner in schema.get("properties", {}).items()
    )
    yield "</details>"


def _contents_html(content: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for media_type, body in content.items():
        yield media_type, _type(body["schema"]) if body else escape(media_type), ""


def _table(rows: Iterator[tuple[str, str, str]]) -> Iterator[str]:
    yield "<table>"
    for name, kind, notes in rows:
        yield f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{notes}</td></tr>"
    yield "</table>"


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to those that have a name."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    if "prefixItems" in schema:
        return " and ".join(_type(item) for item in schema["prefixItems"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    kind = escape(str(schema.get("type", "any")))
    return f"{kind} (base64)" if schema.get("contentEncoding") == "base64" else kind


def _notes(schema: dict[str, Any], text: str | None) -> str:
    notes = [_text(text or schema.get("description", ""))]
    bounds = [(name, schema[name]) for name in ("minimum", "maximum", "maxLength", "maxItems") if name in schema]
    notes += [f"<small>{name} {escape(str(value))}</small>" for name, value in bounds]
    if "default" in schema:
        notes.append(f"<small>default <code>{escape(str(schema['default']))}</code></small>")
    return " ".join(note for note in notes if note)


def _text(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))


_HTML = "text/html"
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class DescriptionApi:
    def __init__(self, operations: Callable[[], list[HttpOperation]], version: str) -> None:
        self._all = operations
        self._version = version

    def operations(self) -> list[HttpOperation]:
        group = "description"
        return [
            HttpOperation(
                "GET",
                "/api/openapi.json",
                "openapi",
                group,
                "This API as an OpenAPI document",
                self.openapi,
                {200: ResponseSpec("The document.", {JSON: None})},
            ),
            HttpOperation(
                "GET",
                "/api/docs",
                "docs",
                group,
                "This API as a page",
                self.page,
                {200: ResponseSpec("The page.", {_HTML: None})},
            ),
            HttpOperation(
                "GET",
                "/",
                "root",
                group,
                "The way to the page",
                self.root,
                {307: ResponseSpec("To the page.", headers={"Location": "`/api/docs`"})},
            ),
        ]

    @cached_property
    def document(self) -> dict[str, Any]:
        return openapi_document(self._all(), self._version)

    @cached_property
    def _html(self) -> str:
        return docs_page(self.document)

    async def openapi(self, _: Request) -> Response:
        return json_response(self.document)

    async def page(self, _: Request) -> Response:
        return HTMLResponse(self._html, headers={"Content-Security-Policy": _PAGE_POLICY})

    async def root(self, _: Request) -> Response:
        return RedirectResponse("/api/docs")
