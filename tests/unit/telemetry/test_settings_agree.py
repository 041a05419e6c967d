"""What settings refuse is what telemetry, the broker and tables would refuse later: the lists cannot drift apart."""

import pytest
from tests.hostile_names import hostile_names

from icestream.config.telemetry import ENVELOPE_COLUMNS, TELEMETRY_COLUMNS, is_tenant
from icestream.model.errors import InvalidNameError, InvalidRequestError
from icestream.model.messages import ENVELOPE
from icestream.telemetry import Signal, topic_schema
from icestream.telemetry.schemas import ConversionOptions, Promoted
from icestream.telemetry.tenants import check_tenant


def test_the_columns_of_telemetry_are_those_of_its_schemas() -> None:
    assert {name for signal in Signal for name in topic_schema(signal).names} == TELEMETRY_COLUMNS


def test_reserved_columns_are_those_of_the_broker() -> None:
    assert tuple(f"_{field.name}" for field in ENVELOPE) == ENVELOPE_COLUMNS


def test_a_name_that_settings_take_is_one_that_a_tenant_can_have() -> None:
    others = ["acme", "ACME-2", "9", "a.b", "a_b", "x" * 100, "x" * 101, "-a", ".a", "Sys", "sys1"]
    for name in [*hostile_names(), *others]:
        try:
            taken = bool(check_tenant(name))
        except InvalidNameError:
            taken = False
        assert is_tenant(name) == taken, name


def test_a_signal_may_be_named_by_text_and_an_unknown_one_is_told_the_known() -> None:
    assert topic_schema("traces") is topic_schema(Signal.TRACES)
    with pytest.raises(InvalidRequestError, match=r"'trace' is no signal of telemetry.*traces, logs, metrics"):
        topic_schema("trace")


def test_a_promoted_column_that_differs_in_case_alone_is_refused() -> None:
    for promoted in ((Promoted("x", "Name"),), (Promoted("x", "route"), Promoted("y", "Route"))):
        with pytest.raises(InvalidRequestError, match="that name is taken"):
            topic_schema(Signal.TRACES, ConversionOptions(promoted=promoted))
