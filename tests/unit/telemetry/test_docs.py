from pathlib import Path

import pytest

from icestream.config import TelemetrySettings
from icestream.telemetry import ConversionOptions, Signal, topic_schema
from icestream.telemetry.convert import KINDS

PAGE = Path(__file__).parents[3] / "docs" / "telemetry-mapping.md"


@pytest.mark.parametrize("signal", Signal)
def test_the_mapping_is_documented_column_by_column(signal: Signal) -> None:
    text = PAGE.read_text()
    section = text[text.index(f"## `{signal}`") :].split("\n## ")[0]
    general = text[: text.index("## `traces`")]
    names = topic_schema(signal).names
    origin = names.index("resource")
    assert [name for name in names[:origin] if f"`{name}`" not in section] == []
    assert [name for name in names[origin:] if f"`{name}`" not in general] == []


def test_the_limits_of_the_doors_are_documented() -> None:
    settings = TelemetrySettings()
    text = PAGE.read_text()
    assert f"`telemetry.max_request_bytes` | {settings.max_request_bytes // (1024 * 1024)} MiB |" in text
    assert f"`telemetry.max_request_rows` | {settings.max_request_rows:,} |" in text


def test_the_limits_are_documented() -> None:
    text, options = PAGE.read_text(), ConversionOptions()
    mib = 1024 * 1024
    for shown in (
        f"{options.max_request_bytes // mib} MiB",
        f"{options.max_batch_bytes // mib} MiB",
        f"{options.max_rows:,}",
        f"{options.max_depth} levels",
        *(f"`{kind}`" for kind in KINDS),
    ):
        assert shown in text
