import pytest

from icestream.model.callers import FULL_ACCESS, Caller, Callers
from icestream.model.errors import InvalidNameError, PermissionDeniedError, UnauthenticatedError

ACME, ACME_2, ROOT = "acme-token-1", "acme-token-2", "root-token-1"


@pytest.fixture
def callers() -> Callers:
    return Callers([("acme", ACME), ("acme", ACME_2), ("*", ROOT)])


def identify(callers: Callers, header: str | None) -> Caller:
    return callers.identify(header, operation="test")


class TestCaller:
    def test_a_namespaces_own_may_touch_that_alone(self) -> None:
        caller = Caller("acme")
        assert caller.may("acme")
        for other in ("globex", "ACME", "acme2", "", "*"):
            assert not caller.may(other)
            with pytest.raises(PermissionDeniedError, match="for another namespace"):
                caller.check(other, operation="test")
        assert caller.check_topic("acme/events", operation="test") == ("acme", "events")
        with pytest.raises(PermissionDeniedError):
            caller.check_topic("events", operation="test")
        with pytest.raises(PermissionDeniedError, match=r"use a token of \*"):
            caller.check_everything(operation="test")

    def test_a_wrong_name_is_a_wrong_name(self) -> None:
        with pytest.raises(InvalidNameError):
            Caller("acme").check_topic("../x", operation="test")

    def test_one_who_may_do_everything(self) -> None:
        assert FULL_ACCESS.may("anything")
        assert FULL_ACCESS.check_topic("events", operation="test") == ("default", "events")
        FULL_ACCESS.check_everything(operation="test")


class TestCallers:
    def test_a_token_is_its_namespaces(self, callers: Callers) -> None:
        assert identify(callers, f"Bearer {ACME}") == identify(callers, f"bearer  {ACME_2} ") == Caller("acme")
        assert identify(callers, f"Bearer {ROOT}") == FULL_ACCESS
        assert callers.namespaces == {"acme"}
        assert not callers.has_no_authentication

    @pytest.mark.parametrize(
        "header",
        [None, "", "Bearer", "Bearer ", "Bearer acme", f"Basic {ACME}", ACME, f"Bearer {ACME}x", "Bearer \udcff", "*"],
    )
    def test_anything_else_is_nobody(self, callers: Callers, header: str | None) -> None:
        with pytest.raises(UnauthenticatedError) as caught:
            identify(callers, header)
        assert "acme" not in str(caught.value)

    def test_without_tokens_everybody_may_do_everything(self) -> None:
        nobody_asked = Callers()
        assert nobody_asked.has_no_authentication
        for header in (None, "", "Bearer whatever", "Basic x"):
            assert identify(nobody_asked, header) == FULL_ACCESS

    def test_tokens_are_not_kept(self, callers: Callers) -> None:
        assert ACME not in repr(vars(callers))

    def test_a_token_must_be_a_legal_namespaces(self) -> None:
        with pytest.raises(InvalidNameError, match="namespace for a token"):
            Callers([("a/b", "long-enough")])
