"""Spark logs as its settings files say. Without them the JVM writes to stdout, where `--json` belongs."""

from pathlib import Path

import pytest

from icestream.pipeline.maintenance import session as maintenance_session
from icestream.pipeline.spark import session as pipeline_session


@pytest.mark.parametrize(
    "path",
    [pipeline_session._LOG_SETTINGS, Path(maintenance_session._LOG_OPTION.partition("=")[2])],
    ids=["pipeline", "maintenance"],
)
def test_the_settings_of_sparks_log_are_there(path: Path) -> None:
    assert path.is_file()
