"""The API's own description over HTTP: for programs, and for people."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from icestream.server.http.docs_page import docs_page
from icestream.server.http.errors import json_response
from icestream.server.http.openapi import openapi_document
from icestream.server.http.operations import JSON, Answer, Operation

_HTML = "text/html"
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class DescriptionApi:
    def __init__(self, operations: Callable[[], list[Operation]], version: str) -> None:
        self._all = operations
        self._version = version

    def operations(self) -> list[Operation]:
        group = "description"
        return [
            Operation(
                "GET",
                "/api/openapi.json",
                "openapi",
                group,
                "This API as an OpenAPI document",
                self.openapi,
                {200: Answer("The document.", {JSON: None})},
            ),
            Operation(
                "GET",
                "/api/docs",
                "docs",
                group,
                "This API as a page",
                self.page,
                {200: Answer("The page.", {_HTML: None})},
            ),
            Operation(
                "GET",
                "/",
                "root",
                group,
                "The way to the page",
                self.root,
                {307: Answer("To the page.", headers={"Location": "`/api/docs`"})},
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
