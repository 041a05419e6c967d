import pytest
from pydantic import SecretStr, ValidationError
from tests.hostile_names import hostile_names

from icestream.config import AuthSettings, TelemetrySettings
from icestream.model.callers import Callers
from icestream.model.errors import IcestreamError, InvalidNameError, UnauthenticatedError
from icestream.telemetry.tenants import TelemetrySender, TenantRefusedError, Tenants, check_dataset, check_tenant

ACME, GLOBEX, GATEWAY = "acme-token-1", "globex-token-1", "gateway-token"
TOKENS = SecretStr(f"acme={ACME}, globex={GLOBEX}\n*={GATEWAY} acme=acme-token-2")


def tenants(*known: str, tokens: SecretStr | None = None, **settings: object) -> Tenants:
    callers = Callers(AuthSettings(tokens=tokens).token_pairs)
    return Tenants(TelemetrySettings.model_validate(settings), callers, known.__contains__)


def bearer(token: str, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", **{name.replace("_", "-"): value for name, value in headers.items()}}


def test_a_thousand_hostile_names_are_refused_and_nothing_is_looked_up_by_them() -> None:
    def exists(name: str) -> bool:
        raise AssertionError(name)

    names = list(hostile_names())
    assert len(names) == 1000
    open_to_all = Tenants(TelemetrySettings(), Callers(), exists)
    for name in names:
        with pytest.raises(InvalidNameError) as caught:
            open_to_all.identify({"x-tenant-id": name})
        assert caught.value.remedy
        assert len(str(caught.value)) < 500
        assert not caught.value.retryable


@pytest.mark.parametrize("name", ["acme", "ACME-2", "a", "9", "a.b", "a_b", "x" * 100])
def test_ordinary_names_are_taken(name: str) -> None:
    assert check_tenant(name) == name
    assert tenants().identify({"x-tenant-id": name}) == TelemetrySender(name)


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 93, "ä"])
def test_a_dataset_must_be_a_part_of_a_topics_name(name: str) -> None:
    with pytest.raises(InvalidNameError):
        tenants().identify({"x-dataset-id": name})
    assert check_dataset("x" * 92)


class TestWithoutTokens:
    def test_the_header_names_the_tenant_and_the_dataset(self) -> None:
        assert tenants().identify({"x-tenant-id": "acme", "x-dataset-id": "prod"}) == TelemetrySender("acme", "prod")

    def test_without_a_header_it_is_the_default_tenant(self) -> None:
        assert tenants().identify({}) == TelemetrySender("default")
        assert tenants(default_tenant="all").identify({}) == TelemetrySender("all")

    def test_without_a_default_a_tenant_must_be_named(self) -> None:
        with pytest.raises(TenantRefusedError, match="names no tenant"):
            tenants(default_tenant=None).identify({})

    def test_other_headers_may_be_chosen(self) -> None:
        found = tenants(tenant_header="x-scope-orgid", dataset_header="x-env")
        assert found.identify({"x-scope-orgid": "acme", "x-env": "prod"}) == TelemetrySender("acme", "prod")

    def test_unknown_tenants_are_refused_where_none_are_made(self) -> None:
        closed = tenants("found", auto_create_tenants=False, tenants="acme, globex")
        for name in ("acme", "globex", "default", "found"):
            assert closed.identify({"x-tenant-id": name}).tenant == name
        with pytest.raises(TenantRefusedError, match="no tenant 'other'"):
            closed.identify({"x-tenant-id": "other"})

    def test_names_in_the_settings_are_checked_too(self) -> None:
        with pytest.raises(ValidationError):
            tenants(tenants="a/b")
        with pytest.raises(ValidationError):
            tenants(default_tenant="..")


class TestWithTokens:
    def test_a_token_is_its_tenants(self) -> None:
        found = tenants(tokens=TOKENS)
        assert found.identify(bearer(ACME)) == TelemetrySender("acme", any_tenant=False)
        assert found.identify(bearer("acme-token-2", x_dataset_id="prod")) == TelemetrySender(
            "acme", "prod", any_tenant=False
        )
        assert found.identify({"authorization": f"bearer  {GLOBEX} "}).tenant == "globex"

    def test_the_header_cannot_make_it_another_tenants(self) -> None:
        found = tenants(tokens=TOKENS)
        assert found.identify(bearer(ACME, x_tenant_id="acme")).tenant == "acme"
        for name in ("globex", "default", "..", ""):
            with pytest.raises(TenantRefusedError, match="another tenant's"):
                found.identify(bearer(ACME, x_tenant_id=name))

    @pytest.mark.parametrize(
        "header",
        [None, "", "Bearer", "Bearer ", "Bearer acme", f"Basic {ACME}", ACME, f"Bearer {ACME}x", "Bearer \udcff"],
    )
    def test_anything_else_is_nobody(self, header: str | None) -> None:
        headers = {"x-tenant-id": "acme"} | ({"authorization": header} if header is not None else {})
        with pytest.raises(UnauthenticatedError):
            tenants(tokens=TOKENS).identify(headers)

    def test_a_gateway_speaks_for_known_tenants(self) -> None:
        found = tenants("found", tokens=TOKENS)
        for name in ("acme", "found", "default"):
            assert found.identify(bearer(GATEWAY, x_tenant_id=name)) == TelemetrySender(name)
        with pytest.raises(TenantRefusedError):
            found.identify(bearer(GATEWAY, x_tenant_id="other"))
        assert tenants(tokens=TOKENS, auto_create_tenants=True).identify(bearer(GATEWAY, x_tenant_id="other"))

    def test_no_error_says_a_token(self) -> None:
        with pytest.raises(IcestreamError) as caught:
            tenants(tokens=TOKENS).identify(bearer("some-other-token"))
        assert "token-" not in str(caught.value)
        assert "other-token" not in str(caught.value)

    def test_a_namespace_that_can_be_no_tenant_sends_nothing(self) -> None:
        found = Tenants(TelemetrySettings(), Callers([("sys", "long-enough")]), lambda _name: False)
        with pytest.raises(InvalidNameError, match="reserved"):
            found.identify(bearer("long-enough"))


@pytest.mark.parametrize(
    "settings",
    [
        {"tenant_header": "X-Tenant"},
        {"tenant_header": "a b"},
        {"promoted_attributes": "a=1x"},
        {"promoted_attributes": "a.b, a_b"},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        TelemetrySettings.model_validate(settings)
