"""The OpenAPI 3.1 document, made from the operations and the models that they name."""

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from icestream.model.names import MAX_PART_LENGTH
from icestream.server.access import OPERATIONS, Access
from icestream.server.http.models import Error
from icestream.server.http.operations import JSON, Answer, Content, Operation

_PARAMETER = re.compile(r"\{(\w+)\}")
_TEXT = (
    "Topics, messages and figures of an icestream broker. Every error is the same JSON object and says what helps. "
    "Unknown fields and parameters are refused. Where tokens are given out (`auth.tokens`), most of it "
    "needs one."
)
_TOKENS = {"token": {"type": "http", "scheme": "bearer"}}


def openapi_document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "icestream", "version": version, "description": _TEXT},
        "servers": [{"url": "/"}],
        "tags": [{"name": group} for group in dict.fromkeys(operation.group for operation in operations)],
        "paths": paths,
        "components": {"schemas": _schemas(operations), "securitySchemes": _TOKENS},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    is_open = OPERATIONS.get(operation.name) is Access.OPEN
    errors = sorted({*operation.errors, *(() if is_open else (401, 403))})
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.group],
        "summary": operation.text,
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation.query)],
        "responses": {
            **{str(status): _answer(answer) for status, answer in operation.answers.items()},
            **{str(status): _answer(Answer(HTTPStatus(status).phrase, {JSON: Error})) for status in errors},
            "default": _answer(Answer("Any other error", {JSON: Error})),
        },
    }
    if not is_open:
        described["security"] = [{name: []} for name in _TOKENS]
    if operation.details:
        described["description"] = operation.details
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.body)}
    return described


def _answer(answer: Answer) -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.text}
    if answer.content:
        described["content"] = _content(answer.content)
    if answer.headers:
        described["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in answer.headers.items()
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


def _query_parameters(model: type[BaseModel] | None) -> Iterable[dict[str, Any]]:
    if model is None:
        return
    document = _without_null_defaults(model.model_json_schema())
    for name, schema in document["properties"].items():
        text = schema.pop("description", "")
        schema.pop("title", None)
        required = name in document.get("required", ())
        yield {"name": name, "in": "query", "required": required, "description": text, "schema": schema}


def _schemas(operations: Sequence[Operation]) -> dict[str, Any]:
    contents = [content for operation in operations for content in _contents(operation)]
    models = {model for content in contents for model in content.values() if model is not None} | {Error}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, document = models_json_schema(
        [(model, "validation") for model in ordered], ref_template="#/components/schemas/{model}"
    )
    schemas: dict[str, Any] = _without_null_defaults(document["$defs"])
    return schemas


def _contents(operation: Operation) -> Iterable[Content]:
    yield operation.body or {}
    for answer in operation.answers.values():
        yield answer.content


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
