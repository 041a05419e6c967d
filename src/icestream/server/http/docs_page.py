"""The API's description as one HTML page that needs nothing but itself: no script, no font, no other host."""

import re
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

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
                yield from _operation(method, path, operation)
    yield "<h2>schemas</h2>"
    for name, schema in sorted(schemas.items()):
        yield from _schema(name, schema)
    yield "</main></body></html>"


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
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
        yield from _table(_contents(operation["requestBody"]["content"]))
    yield "<h4>answers</h4>"
    yield from _table(
        (status, " ".join(kind for _, kind, _ in _contents(answer.get("content", {}))), _text(answer["description"]))
        for status, answer in operation["responses"].items()
    )
    yield "</details>"


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f'<details id="schema-{escape(name)}"><summary><code>{escape(name)}</code></summary>'
    if "description" in schema:
        yield f"<p>{_text(schema['description'])}</p>"
    required = schema.get("required", ())
    yield from _table(
        (field, _type(inner) + ("" if field in required else " <i>optional</i>"), _notes(inner, None))
        for field, inner in schema.get("properties", {}).items()
    )
    yield "</details>"


def _contents(content: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
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
