"""Figures of tenants over HTTP."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from icestream.protocol.admin import TenantPage, TenantStats
from icestream.server.http.authorization import caller_of
from icestream.server.http.errors import json_response
from icestream.server.http.models import TenantsQuery
from icestream.server.http.operations import JSON, Operation, ResponseSpec, parse_query, refuse_query
from icestream.storage.tenant_figures import TenantFigures

TENANTS_PATH = "/api/v1/tenants"


class TenantsApi:
    def __init__(self, tenants: TenantFigures) -> None:
        self._tenants = tenants

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                TENANTS_PATH,
                "list_tenants",
                "tenants",
                "Figures of tenants by name",
                self.list,
                {200: ResponseSpec("A page of tenants.", {JSON: TenantPage})},
                query=TenantsQuery,
                errors=(400, 503),
                details="Since the broker started. A tenant's own token sees that tenant alone.",
            ),
            Operation(
                "GET",
                f"{TENANTS_PATH}/{{tenant}}",
                "describe_tenant",
                "tenants",
                "Figures of a tenant",
                self.describe,
                {200: ResponseSpec("The tenant.", {JSON: TenantStats})},
                errors=(400, 404, 503),
            ),
        ]

    async def list(self, request: Request) -> Response:
        query = parse_query(request, TenantsQuery, operation="list tenants")
        caller = caller_of(request)
        return json_response(await run_in_threadpool(self._tenants.page, caller, query.after, query.limit))

    async def describe(self, request: Request) -> Response:
        refuse_query(request, operation="describe tenant")
        caller, tenant = caller_of(request), request.path_params["tenant"]
        return json_response(
            await run_in_threadpool(lambda: self._tenants.one(caller, tenant, operation="describe tenant"))
        )
